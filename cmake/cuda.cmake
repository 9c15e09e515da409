# The modules of the CUDA device (src/device/module.h): trireme_cuda_sim.so with the simulated GPU, and where nvcc is found
# trireme_cuda.so for GPUs. They lie beside the program, which gives them what they call of it.
file(GLOB cuda_host_sources CONFIGURE_DEPENDS src/device/cuda/*.c)
file(GLOB cuda_kernel_sources CONFIGURE_DEPENDS src/device/cuda/*.cu)
file(GLOB cuda_sim_sources CONFIGURE_DEPENDS src/device/cuda/sim/*.cc)

shared_headers(${CMAKE_SOURCE_DIR} src/device/cuda interface_headers interface_read src/device/module.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${interface_read})
hash_of_files(${CMAKE_SOURCE_DIR} interface ${interface_headers})
set_source_files_properties(src/device/module.c PROPERTIES COMPILE_DEFINITIONS "MODULE_INTERFACE=\"${interface}\"")

# add_cuda_module(TARGET KIND INCLUDE_FOLDER SOURCE...)
function(add_cuda_module target kind include)
  add_library(${target} MODULE ${cuda_host_sources} ${ARGN})
  target_include_directories(${target} PRIVATE src)
  target_include_directories(${target} SYSTEM PRIVATE ${include})
  target_compile_definitions(${target} PRIVATE CUDA_KIND="${kind}" MODULE_INTERFACE="${interface}")
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(${target} PRIVATE Threads::Threads)
  is_module(${target})
endfunction()

# Kernels as C++ for the host.
add_cuda_module(trireme_cuda_sim cuda-sim ${CMAKE_SOURCE_DIR}/src/device/cuda/sim/include
                ${cuda_kernel_sources} ${cuda_sim_sources})
# In C++ gcc does not warn of conversions between signed and unsigned; clang does, unless told.
set_source_files_properties(${cuda_kernel_sources} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++;-Wno-sign-conversion")

if(TRIREME_SANITIZE MATCHES undefined)
  # The run-time part of these is for C++ alone, and the programs that load the module are mostly C.
  target_compile_options(trireme_cuda_sim PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=vptr>
                         $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-fno-sanitize=function>)
endif()

# The sanitized builds test the same code with the simulated GPU.
find_program(NVCC nvcc HINTS /usr/local/cuda/bin DOC "NVIDIA's compiler; without it there is no --device cuda")
if(NOT NVCC OR TRIREME_SANITIZE OR CMAKE_CROSSCOMPILING)
  return()
endif()
get_filename_component(cuda_root ${NVCC} REALPATH)
get_filename_component(cuda_root ${cuda_root} DIRECTORY)
get_filename_component(cuda_root ${cuda_root} DIRECTORY)
find_path(CUDART_INCLUDE cuda_runtime_api.h HINTS ${cuda_root}/include REQUIRED)
find_path(CUBLASLT_INCLUDE cublasLt.h HINTS ${cuda_root}/include REQUIRED) # the library is found when the device is opened
find_library(CUDART_STATIC cudart_static HINTS ${cuda_root}/lib64 ${cuda_root}/lib REQUIRED)

# Machine code for A100, H100 and H200, B200, all from one PTX, which halves the compiler's time: no kernel uses what newer
# GPUs alone have. Other GPUs translate the PTX when the module is loaded. Fused multiply-adds are called for, never made from
# a product and a sum.
set(nvcc_targets -gencode arch=compute_80,code=[compute_80,sm_80,sm_90a,sm_100a])
set(nvcc_options -std=c++17 -O3 -lineinfo -fmad=false -I${CMAKE_SOURCE_DIR}/src
    -Xcompiler=-fPIC,-Wall,-Wextra,-ffp-contract=off,-fno-math-errno)
if(TRIREME_WERROR)
  list(APPEND nvcc_options -Werror all-warnings)
endif()
# tools/lint_kernels reads what the assembler says of each kernel, and the PTX.
set(cuda_objects)
set(cuda_ptx)
foreach(source ${cuda_kernel_sources})
  get_filename_component(name ${source} NAME_WE)
  set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
  set(ptx ${CMAKE_BINARY_DIR}/cuda/${name}.ptx)
  list(APPEND cuda_objects ${object})
  list(APPEND cuda_ptx ${ptx})
  add_custom_command(OUTPUT ${object} ${object}.usage DEPENDS ${source} cmake/with_usage.sh DEPFILE ${object}.d VERBATIM
                     COMMENT "Building the GPU's kernels of ${name}.cu"
                     COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/cuda
                     COMMAND ${CMAKE_SOURCE_DIR}/cmake/with_usage.sh ${object}.usage ${CMAKE_CXX_COMPILER_LAUNCHER}
                             ${NVCC} ${nvcc_options} ${nvcc_targets} -Xptxas -v -MD -MF ${object}.d -c ${source} -o ${object})
  add_custom_command(OUTPUT ${ptx} DEPENDS ${source} DEPFILE ${ptx}.d VERBATIM
                     COMMENT "Building the PTX of ${name}.cu"
                     COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/cuda
                     COMMAND ${NVCC} ${nvcc_options} -arch=compute_80 -ptx -MD -MF ${ptx}.d ${source} -o ${ptx})
endforeach()
add_custom_target(trireme_cuda_ptx DEPENDS ${cuda_ptx})
# Without NCCL's header ranks that are processes do without its links. A wheel has it in a folder beside CUDA's.
find_path(NCCL_INCLUDE nccl.h HINTS ${cuda_root}/include ${cuda_root}/../nccl/include)
if(NCCL_INCLUDE)
  set(nccl_include ${NCCL_INCLUDE})
else()
  set(nccl_include)
  list(REMOVE_ITEM cuda_host_sources ${CMAKE_SOURCE_DIR}/src/device/cuda/nccl.c)
  list(APPEND cuda_host_sources src/device/cuda/absent/nccl.c)
endif()
add_cuda_module(trireme_cuda cuda "${CUDART_INCLUDE};${CUBLASLT_INCLUDE};${nccl_include}" ${cuda_objects})
target_link_libraries(trireme_cuda PRIVATE ${CUDART_STATIC} ${CMAKE_DL_LIBS} rt)
add_dependencies(trireme trireme_cuda)
