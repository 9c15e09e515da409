# The device layer: plain files, plus the CPU kernels, compiled once per instruction set and element type and chosen at
# run time.
add_layer(device trireme_layout ${oneDNN_LINKED} OpenMP::OpenMP_C ${CMAKE_DL_LIBS})
if(HAS_oneDNN)
  target_include_directories(trireme_device PRIVATE ${oneDNN_INCLUDE})
endif()

# The layer's own copy of the kernels is F32 on the baseline of the architecture; each other combination is an object
# library whose symbols end in the names of both.
set(kernel_sources src/device/cpu/kernels.c src/device/cpu/matmul.c src/device/cpu/attention.c src/device/cpu/cached.c
    src/device/cpu/optimizer.c src/device/cpu/qk_norm.c src/device/cpu/experts.c)
set(f32_sources) # of the combinations with F32 alone
if(NOT HAS_oneDNN)
  set(f32_sources src/device/cpu/product.c)
endif()
set(options_of_v3 -march=x86-64-v3)
set(options_of_v4 -march=x86-64-v4)
set(options_of_v4bf16 -march=x86-64-v4 -mavx512bf16)
set(options_of_v4amx ${options_of_v4bf16} -mamx-tile -mamx-bf16 -DCPU_TILES)
set(kernel_levels OFF) # whether there are kernels beyond the baseline's
set(kernel_combinations baseline_BF16 baseline_F16)
option(TRIREME_BASELINE_KERNELS "no CPU kernels but those that every machine of the architecture runs" OFF)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND NOT TRIREME_BASELINE_KERNELS)
  target_compile_definitions(trireme_device PRIVATE TRIREME_X86_LEVELS)
  set(kernel_levels ON)
  list(APPEND kernel_combinations v3_F32 v3_BF16 v3_F16 v4_F32 v4_BF16 v4_F16 v4bf16_BF16 v4amx_BF16)
  set_source_files_properties(src/device/cpu/pairs.c PROPERTIES COMPILE_OPTIONS "${options_of_v4bf16}")
  set_source_files_properties(src/device/cpu/amx.c PROPERTIES COMPILE_OPTIONS "${options_of_v4amx}")
endif()
foreach(combination ${kernel_combinations})
  string(REPLACE "_" ";" level_and_element ${combination})
  list(GET level_and_element 0 level)
  list(GET level_and_element 1 element)
  set(kernels trireme_device_${combination})
  add_library(${kernels} OBJECT ${kernel_sources} $<$<STREQUAL:${element},F32>:${f32_sources}>)
  target_compile_options(${kernels} PRIVATE ${options_of_${level}})
  target_compile_definitions(${kernels} PRIVATE CPU_ISA=${level} CPU_ELEMENT=${element})
  target_include_directories(${kernels} PRIVATE src)
  target_link_libraries(${kernels} PRIVATE OpenMP::OpenMP_C)
  target_sources(trireme_device PRIVATE $<TARGET_OBJECTS:${kernels}>)
endforeach()
