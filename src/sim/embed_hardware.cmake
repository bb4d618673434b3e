# cmake -DHARDWARE=folder -DSTACKS=folder -DOUTPUT=file.cpp -P embed_hardware.cmake
# Writes built_in_devices() and built_in_stacks() of sim/device_file.h: the text of each file of the folders as a raw string literal.
set(source "// Made by embed_hardware.cmake out of hardware/ and stacks/.
#include <array>

#include \"sim/device_file.h\"

namespace braid {
")
function(embed folder function)
  file(GLOB files ${folder}/*.toml)
  list(SORT files)
  list(LENGTH files count)
  set(entries "")
  foreach(file IN LISTS files)
    get_filename_component(name ${file} NAME_WLE)
    file(READ ${file} text)
    string(APPEND entries "      {\"${name}\", R\"braid_file(${text})braid_file\"},\n")
  endforeach()
  string(APPEND source "
std::span<const BuiltInFile> ${function}() {
  static constexpr std::array<BuiltInFile, ${count}> kFiles = {{\n${entries}  }};
  return kFiles;
}
")
  set(source "${source}" PARENT_SCOPE)
endfunction()
embed(${HARDWARE} built_in_devices)
embed(${STACKS} built_in_stacks)
file(WRITE ${OUTPUT} "${source}\n}  // namespace braid\n")
