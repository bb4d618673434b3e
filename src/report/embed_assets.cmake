# cmake -DASSETS=folder -DOUTPUT=file.cpp "-DSCRIPTS=a.js;b.js" -P embed_assets.cmake
# Writes the functions of report/assets.h: each returns the text of its file as a raw string literal.
file(READ ${ASSETS}/page.html page)
file(READ ${ASSETS}/style.css style)
set(script "")
foreach(name IN LISTS SCRIPTS)
  file(READ ${ASSETS}/${name} text)
  string(APPEND script "${text}")
endforeach()

set(source "// Made by embed_assets.cmake out of src/report/assets.\n#include \"report/assets.h\"\n\nnamespace braid {\n")
foreach(part IN ITEMS page style script)
  string(APPEND source "\nstd::string_view report_${part}() {\n  return R\"braid_asset(${${part}})braid_asset\";\n}\n")
endforeach()
string(APPEND source "\n}  // namespace braid\n")
file(WRITE ${OUTPUT} "${source}")
