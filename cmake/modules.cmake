# Modules are shared libraries that the program loads when it wants them: kinds of devices (src/device/module.h), and
# kinds of MPI (src/comm/mpi_module.h). They lie beside the program, which gives them what they call of it.
include(${CMAKE_CURRENT_LIST_DIR}/interface.cmake)
include(GNUInstallDirs)
file(RELATIVE_PATH module_folder ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR}/trireme)
set_source_files_properties(src/base/beside.c PROPERTIES COMPILE_DEFINITIONS "MODULE_FOLDER=\"${module_folder}\"")

function(is_module target)
  set_target_properties(${target} PROPERTIES PREFIX "" SUFFIX ".so" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
                        LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/module.map)
  target_link_options(${target} PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/module.map)
endfunction()
