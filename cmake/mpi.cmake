# The modules of MPI: trireme_mpi_openmpi.so and trireme_mpi_mpich.so from the same sources, as far as headers were found.
# They are not linked with a library: the program loads the one of the machine before the module.
shared_headers(${CMAKE_SOURCE_DIR} src/comm/mpi mpi_headers mpi_read src/comm/mpi_module.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${mpi_read})
hash_of_files(${CMAKE_SOURCE_DIR} mpi_interface ${mpi_headers})
set(mpi_definitions "MPI_INTERFACE=\"${mpi_interface}\"")
set_source_files_properties(src/comm/mpi.c PROPERTIES COMPILE_DEFINITIONS
                            "${mpi_definitions};OPENMPI_FOLDER=\"${openmpi_FOLDER}\";MPICH_FOLDER=\"${mpich_FOLDER}\"")
file(GLOB mpi_sources CONFIGURE_DEPENDS src/comm/mpi/*.c)
set(mpi_modules)
if(HAS_MPI)
  foreach(kind ${mpi_kinds})
    add_library(trireme_mpi_${kind} MODULE ${mpi_sources})
    target_include_directories(trireme_mpi_${kind} PRIVATE src)
    target_include_directories(trireme_mpi_${kind} SYSTEM PRIVATE ${${kind}_INCLUDE})
    target_compile_definitions(trireme_mpi_${kind} PRIVATE ${mpi_definitions})
    # MPICH's names for what it need not write are small numbers as addresses.
    target_compile_options(trireme_mpi_${kind} PRIVATE $<$<C_COMPILER_ID:GNU>:-Wno-stringop-overflow>)
    is_module(trireme_mpi_${kind})
    list(APPEND mpi_modules trireme_mpi_${kind})
  endforeach()
  add_dependencies(trireme_comm ${mpi_modules})
endif()
