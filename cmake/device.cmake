# The device layer: plain files, plus the CPU kernels, compiled once per instruction set and element type and chosen at
# run time.
add_layer(device trireme_layout ${DNNL_LIBRARY} OpenMP::OpenMP_C)
target_include_directories(trireme_device PRIVATE ${DNNL_INCLUDE})

# oneDNN's product of bf16 factors is exported, but in no header (src/device/cpu.c).
include(CheckFunctionExists)
set(CMAKE_REQUIRED_LIBRARIES ${DNNL_LIBRARY})
check_function_exists(dnnl_gemm_bf16bf16f32 TRIREME_HAVE_BF16_GEMM)
unset(CMAKE_REQUIRED_LIBRARIES)
if(TRIREME_HAVE_BF16_GEMM)
  target_compile_definitions(trireme_device PRIVATE TRIREME_HAVE_BF16_GEMM)
endif()

# The layer's own copy of the kernels is F32 on the baseline of the architecture; each other combination is an object
# library whose symbols end in the names of both. Kernels may fuse multiplications with additions; NaN and infinity stay.
set(kernel_sources src/device/cpu_kernels.c src/device/cpu_matmul.c src/device/cpu_attention.c
    src/device/cpu_cached.c)
set_source_files_properties(${kernel_sources} PROPERTIES COMPILE_OPTIONS -ffp-contract=fast)
set(kernel_levels baseline)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  list(APPEND kernel_levels v3 v4)
endif()
foreach(level ${kernel_levels})
  foreach(element F32 BF16 F16)
    if(level STREQUAL baseline AND element STREQUAL F32)
      continue()
    endif()
    set(kernels trireme_device_${level}_${element})
    add_library(${kernels} OBJECT ${kernel_sources})
    if(NOT level STREQUAL baseline)
      target_compile_options(${kernels} PRIVATE -march=x86-64-${level})
    endif()
    target_compile_definitions(${kernels} PRIVATE CPU_ISA=${level} CPU_ELEMENT=${element})
    target_include_directories(${kernels} PRIVATE src)
    target_link_libraries(${kernels} PRIVATE OpenMP::OpenMP_C)
    target_sources(trireme_device PRIVATE $<TARGET_OBJECTS:${kernels}>)
  endforeach()
endforeach()
