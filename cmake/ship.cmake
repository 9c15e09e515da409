# Files that are part of the program: ship_files(TARGET FOLDER...) makes a C file with a table `shipped_NAME`, by the
# folder's own name, of every text in it (ShippedFile in src/machine/machine.h), anew whenever one of them changes, comes
# or goes.
#
# The same file, run as a script, writes that C file:  cmake -DOUT=FILE -DFILES=FILE;FILE... -DFOLDERS=... -P ship.cmake
if(NOT CMAKE_SCRIPT_MODE_FILE)
  function(ship_files target)
    set(files)
    foreach(folder ${ARGN})
      file(GLOB found CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.yaml
           ${CMAKE_SOURCE_DIR}/${folder}/*.css ${CMAKE_SOURCE_DIR}/${folder}/*.js)
      list(APPEND files ${found})
    endforeach()
    set(out ${CMAKE_BINARY_DIR}/shipped_${target}.c)
    set(script ${CMAKE_SOURCE_DIR}/cmake/ship.cmake)
    add_custom_command(OUTPUT ${out} DEPENDS ${files} ${script} VERBATIM
                       COMMAND ${CMAKE_COMMAND} -DOUT=${out} "-DFILES=${files}" "-DFOLDERS=${ARGN}" -P ${script})
    target_sources(${target} PRIVATE ${out})
  endfunction()
  return()
endif()

set(code "// Made by cmake/ship.cmake.\n#include \"machine/machine.h\"\n")
foreach(path ${FOLDERS})
  get_filename_component(folder ${path} NAME)
  set(table)
  foreach(file ${FILES})
    get_filename_component(in ${file} DIRECTORY)
    get_filename_component(in ${in} NAME)
    if(in STREQUAL folder)
      get_filename_component(name ${file} NAME_WLE)
      string(MAKE_C_IDENTIFIER "${folder}_${name}" variable)
      # Byte by byte: a string literal may be too long for a compiler.
      file(READ ${file} bytes HEX)
      string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${bytes}")
      string(APPEND code "static const char ${variable}[] = {${bytes}0};\n")
      string(APPEND table "    {\"${name}\", ${variable}},\n")
    endif()
  endforeach()
  string(APPEND code "const ShippedFile shipped_${folder}[] = {\n${table}};\n"
         "const int num_shipped_${folder} = sizeof shipped_${folder} / sizeof *shipped_${folder};\n")
endforeach()
file(WRITE ${OUT} "${code}")
