# The device layer: plain files, plus the CPU kernels, compiled once per instruction set and chosen at run time.
add_layer(device trireme_layout ${DNNL_LIBRARY} OpenMP::OpenMP_C)
target_include_directories(trireme_device PRIVATE ${DNNL_INCLUDE})

# The layer's own copy of the kernels is the baseline of the architecture; x86-64 has two more levels, each an object
# library whose symbols end in its name. Kernels may fuse multiplications with additions; NaN and infinity stay.
set(kernel_sources src/device/cpu_kernels.c src/device/cpu_attention.c)
set_source_files_properties(${kernel_sources} PROPERTIES COMPILE_OPTIONS -ffp-contract=fast)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  foreach(level v3 v4)
    add_library(trireme_device_${level} OBJECT ${kernel_sources})
    target_compile_options(trireme_device_${level} PRIVATE -march=x86-64-${level})
    target_compile_definitions(trireme_device_${level} PRIVATE CPU_ISA=${level})
    target_include_directories(trireme_device_${level} PRIVATE src)
    target_link_libraries(trireme_device_${level} PRIVATE OpenMP::OpenMP_C)
    target_sources(trireme_device PRIVATE $<TARGET_OBJECTS:trireme_device_${level}>)
  endforeach()
endif()
