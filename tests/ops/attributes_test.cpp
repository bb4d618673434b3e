#include "ops/attributes.h"

#include "base/expect_error.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

struct AllTypes {
  bool flag = false;
  int64_t count = 0;
  double scale = 0;
  std::string name;
  void fields(auto&& visit) {
    visit("flag", flag);
    visit("count", count);
    visit("scale", scale);
    visit("name", name);
  }
};

OpSpec spec_of(std::vector<Attribute> attributes) {
  return {.op = "thing", .attributes = std::move(attributes)};
}

const std::vector<Attribute> kAttributes = {
    {"flag", true}, {"count", int64_t{7}}, {"scale", 0.5}, {"name", std::string("abc")}};

TEST(ToAttributes, ListsMembersInDeclaredOrder) {
  EXPECT_EQ(to_attributes(AllTypes{.flag = true, .count = 7, .scale = 0.5, .name = "abc"}),
            kAttributes);
  EXPECT_TRUE(to_attributes(NoAttributes{}).empty());
}

TEST(AttributesOf, GivesBackWhatToAttributesTook) {
  const auto typed = attributes_of<AllTypes>(spec_of(kAttributes));
  EXPECT_TRUE(typed.flag);
  EXPECT_EQ(typed.count, 7);
  EXPECT_EQ(typed.scale, 0.5);
  EXPECT_EQ(typed.name, "abc");
}

TEST(AttributesOf, NamesAMissingAttribute) {
  for (size_t i = 0; i < kAttributes.size(); ++i) {
    std::vector<Attribute> attributes = kAttributes;
    attributes.erase(attributes.begin() + static_cast<ptrdiff_t>(i));
    EXPECT_THAT(message_of<InternalError>([&] { attributes_of<AllTypes>(spec_of(attributes)); }),
                HasSubstr("op thing needs the attribute " + kAttributes[i].name));
  }
}

struct WithOptional {
  int64_t count = 0;
  struct Part {
    int64_t first = 0;
    int64_t second = 5;
    void fields(auto&& visit) {
      visit("first", first);
      visit("second", second);
    }
    friend bool operator==(const Part&, const Part&) = default;
  } part = {};
  void fields(auto&& visit) {
    visit("count", count);
    visit.optional(part);
  }
};

TEST(ToAttributes, LeavesOutAnOptionalPartAsMadeByDefault) {
  EXPECT_EQ(to_attributes(WithOptional{.count = 3}),
            (std::vector<Attribute>{{"count", int64_t{3}}}));
  const std::vector<Attribute> whole = {
      {"count", int64_t{3}}, {"first", int64_t{0}}, {"second", int64_t{6}}};
  EXPECT_EQ(to_attributes(WithOptional{.count = 3, .part = {.second = 6}}), whole);
}

TEST(AttributesOf, TakesAnOptionalPartWholeOrNotAtAll) {
  const Attribute count{"count", int64_t{3}};
  const Attribute first{"first", int64_t{1}};
  const Attribute second{"second", int64_t{2}};
  EXPECT_EQ(attributes_of<WithOptional>(spec_of({count})).part, WithOptional::Part());
  EXPECT_EQ(attributes_of<WithOptional>(spec_of({count, first, second})).part,
            (WithOptional::Part{.first = 1, .second = 2}));
  EXPECT_THAT(message_of<InternalError>([&] {
                attributes_of<WithOptional>(spec_of({count, second}));
              }),
              HasSubstr("op thing needs the attribute first"));
}

// 1 is not 1.0: a number of the other type would print and hash differently.
TEST(AttributesOf, NamesAnAttributeOfAnotherType) {
  std::vector<Attribute> attributes = kAttributes;
  attributes[2].value = int64_t{1};
  EXPECT_THAT(message_of<InternalError>([&] { attributes_of<AllTypes>(spec_of(attributes)); }),
              HasSubstr("op thing: attribute scale has the wrong type"));
}

TEST(AttributesOf, RefusesUnknownAndRepeatedAttributes) {
  for (const Attribute& extra : {Attribute{"colour", true}, kAttributes[0]}) {
    std::vector<Attribute> attributes = kAttributes;
    attributes.push_back(extra);
    EXPECT_THAT(message_of<InternalError>([&] { attributes_of<AllTypes>(spec_of(attributes)); }),
                HasSubstr("op thing has 5 attributes, expected 4"));
  }
}

}  // namespace
}  // namespace braid
