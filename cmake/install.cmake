# What `cmake --install` puts where, in GNU's folders: the program, the modules of devices in its library folder, manual
# pages and completions, which the program prints itself, and the examples. CPack makes a package for Debian of them.
install(TARGETS trireme RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS trireme_library LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} PUBLIC_HEADER DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
foreach(module trireme_cuda ${mpi_modules})
  if(TARGET ${module})
    install(TARGETS ${module} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/trireme)
  endif()
endforeach()
install(FILES README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs FILES_MATCHING PATTERN "*.md"
        PATTERN "*.svg" PATTERN "*.png")

set(pages ${CMAKE_BINARY_DIR}/share)
add_custom_command(OUTPUT ${pages}/made DEPENDS trireme cmake/pages.sh VERBATIM
                   COMMENT "Printing manual pages and completions"
                   COMMAND ${CMAKE_SOURCE_DIR}/cmake/pages.sh ${pages} ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:trireme>)
add_custom_target(pages ALL DEPENDS ${pages}/made)
add_custom_target(installed DEPENDS trireme trireme_library pages)
if(TARGET trireme_cuda)
  add_dependencies(installed trireme_cuda)
endif()
install(DIRECTORY ${pages}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR})
install(FILES ${pages}/trireme.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME trireme)
install(FILES ${pages}/_trireme DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${pages}/trireme.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)

file(STRINGS src/base/version.h version REGEX "TRIREME_VERSION")
string(REGEX REPLACE ".*trireme ([0-9.]+).*" "\\1" version "${version}")
configure_file(cmake/trireme.pc.in ${CMAKE_BINARY_DIR}/trireme.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/trireme.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME trireme)
set(CPACK_PACKAGE_VERSION ${version})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "GPT training with composed tensor, pipeline and data parallelism")
set(CPACK_PACKAGE_DESCRIPTION "trireme trains and fine-tunes language models on many processes, on CPUs and GPUs, by tensor, pipeline and
data parallelism; it plans such runs, keeps them going, and reads and writes the models of others.")
set(CPACK_PACKAGE_CONTACT "the trireme maintainers <maintainers@trireme.invalid>")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "openmpi-bin | mpich")
include(CPack)
