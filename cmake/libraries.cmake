# The libraries of others. Each is optional: where it is missing, or named in TRIREME_WITHOUT, files named no_*.c take the
# place of those that call it, and a line says what the program will lack (src/base/libraries.def).
set(TRIREME_WITHOUT "" CACHE STRING "libraries to do without although they are here, such as MPI;oneDNN, or all")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS src/base/libraries.def)
set(libraries_present)
set(unused_sources) # src/ files that another one takes the place of

# optional_library(NAME FOUND [WITH FILE...] [WITHOUT FILE...]): FOUND is the name of the variable that says whether it is
# here. Sets HAS_<NAME>. The files are those that are compiled with or without it alone.
macro(optional_library name found)
  cmake_parse_arguments(files "" "" "WITH;WITHOUT" ${ARGN})
  set(HAS_${name} OFF)
  if(${found} AND NOT "${name}" IN_LIST TRIREME_WITHOUT AND NOT TRIREME_WITHOUT STREQUAL "all")
    set(HAS_${name} ON)
    list(APPEND libraries_present ${name})
    list(APPEND unused_sources ${files_WITHOUT})
  else()
    list(APPEND unused_sources ${files_WITH})
    file(STRINGS src/base/libraries.def row REGEX "^LIBRARY\\([A-Z0-9]+, \"${name}\",")
    string(REGEX REPLACE "^[^,]+, \"[^\"]+\", \"([^\"]+)\", \"([^\"]+)\"\\)$" "\\2;\\1" row "${row}")
    list(GET row 0 lacks)
    list(GET row 1 package)
    message(STATUS "Without ${name} the program lacks ${lacks} (Debian's package: ${package})")
  endif()
endmacro()

# find_optional(NAME HEADER LIBRARY ...): as optional_library. LIBRARY "" where the header is all. Sets <NAME>_INCLUDE and
# <NAME>_LIBRARY.
macro(find_optional name header library)
  find_path(${name}_INCLUDE ${header})
  set(${name}_LINKED)
  set(${name}_found ${${name}_INCLUDE})
  if(NOT "${library}" STREQUAL "")
    find_library(${name}_LIBRARY ${library})
    if(${name}_INCLUDE AND ${name}_LIBRARY)
      set(${name}_LINKED ${${name}_LIBRARY})
    else()
      set(${name}_found OFF)
    endif()
  endif()
  optional_library(${name} ${name}_found ${ARGN})
  if(NOT HAS_${name})
    set(${name}_LINKED)
  endif()
endmacro()

include(${CMAKE_CURRENT_LIST_DIR}/find_mpi.cmake)
optional_library(MPI mpi_kinds)
find_optional(oneDNN dnnl.h dnnl WITH device/cpu/onednn.c WITHOUT device/cpu/no_onednn.c
              device/cpu/product.c)
find_optional(libyaml yaml.h yaml WITH formats/yaml_read.c config/yaml.c WITHOUT formats/no_yaml.c config/no_yaml.c)
find_optional(PCRE2 pcre2.h pcre2-8 WITH tokenizer/pattern.c WITHOUT tokenizer/no_pattern.c)
find_optional(zstd zstd.h zstd WITH corpus/zstandard.c WITHOUT corpus/no_zstandard.c)
find_optional(zlib zlib.h z WITH corpus/gzip.c WITHOUT corpus/no_gzip.c)
find_optional(xxHash xxhash.h "" WITH base/hash.c WITHOUT base/no_xxhash.c)
find_optional(SentencePiece sentencepiece_processor.h sentencepiece WITH tokenizer/sentencepiece.cc
              WITHOUT tokenizer/no_sentencepiece.c)
list(TRANSFORM unused_sources PREPEND ${CMAKE_SOURCE_DIR}/src/)
string(REPLACE ";" " " present "${libraries_present}")
set_source_files_properties(src/base/libraries.c PROPERTIES COMPILE_DEFINITIONS "LIBRARIES_PRESENT=\"${present}\"")
