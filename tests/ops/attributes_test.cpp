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
