#include "base/build_id.h"

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/sha256.h"

namespace braid {
namespace {

constexpr size_t kAlignment = 4;  // of names and contents of notes

size_t aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// The build ID among these notes; empty if there is none.
std::string_view id_in_notes(std::string_view notes) {
  constexpr std::string_view kGnu("GNU\0", 4);
  while (notes.size() >= sizeof(ElfW(Nhdr))) {
    const auto* const note = reinterpret_cast<const ElfW(Nhdr)*>(notes.data());
    const size_t begin = sizeof *note + aligned(note->n_namesz);
    const size_t end = begin + aligned(note->n_descsz);
    if (end > notes.size()) {
      break;
    }
    if (note->n_type == NT_GNU_BUILD_ID && notes.substr(sizeof *note, note->n_namesz) == kGnu) {
      return notes.substr(begin, note->n_descsz);
    }
    notes.remove_prefix(end);
  }
  return {};
}

struct Search {
  uintptr_t code = 0;  // an address in the program or library
  std::string_view id = {};
};

std::string_view bytes_of(const dl_phdr_info& object, const ElfW(Phdr) & segment) {
  return {reinterpret_cast<const char*>(object.dlpi_addr + segment.p_vaddr), segment.p_memsz};
}

/// Looks into one program or library; returns 1 if it is the one.
int look_into(dl_phdr_info* object, size_t /*size*/, void* data) {
  auto& search = *static_cast<Search*>(data);
  std::string_view id;
  bool is_ours = false;
  for (size_t i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type == PT_LOAD) {
      const uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
      is_ours = is_ours || (search.code >= begin && search.code < begin + segment.p_memsz);
    }
    if (segment.p_type == PT_NOTE && id.empty()) {
      id = id_in_notes(bytes_of(*object, segment));
    }
  }
  search.id = is_ours ? id : search.id;
  return is_ours ? 1 : 0;
}

}  // namespace

std::string build_id() {
  Search search{.code = reinterpret_cast<uintptr_t>(&build_id)};
  ::dl_iterate_phdr(look_into, &search);
  return search.id.empty() ? "unknown" : to_hex(search.id);
}

}  // namespace braid
