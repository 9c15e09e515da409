# Writes a header with the commit of the source, and rewrites it only where that has changed.
#   cmake -DROOT=FOLDER -DHEADER=FILE -P commit.cmake
# Where the source is not the top of a checkout its commit is not known.
set(commit)
execute_process(COMMAND git rev-parse --show-toplevel WORKING_DIRECTORY ${ROOT} OUTPUT_VARIABLE top ERROR_QUIET
                OUTPUT_STRIP_TRAILING_WHITESPACE)
get_filename_component(root ${ROOT} REALPATH) # git prints no symbolic links
if(top STREQUAL root)
  execute_process(COMMAND git describe --always --abbrev=12 --exclude=* "--dirty=, modified" WORKING_DIRECTORY ${ROOT}
                  OUTPUT_VARIABLE commit ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
set(text "#define SOURCE_COMMIT \"${commit}\"\n")
set(before)
if(EXISTS ${HEADER})
  file(READ ${HEADER} before)
endif()
if(NOT before STREQUAL text)
  file(WRITE ${HEADER} "${text}")
endif()
