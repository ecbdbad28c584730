# libtorchamp.so. The objects are a separate target, which the C++ tests link to reach symbols that the
# library does not export.

if(TORCHAMP_TORCH_MINOR VERSION_GREATER_EQUAL 2.14)
  set(TORCHAMP_CXX_STANDARD 20)
else()
  set(TORCHAMP_CXX_STANDARD 17)
endif()

set(TORCHAMP_FATBIN_ARCHS_QUOTED "")
foreach(arch IN LISTS TORCHAMP_FATBIN_ARCHS)
  list(APPEND TORCHAMP_FATBIN_ARCHS_QUOTED "\"sm_${arch}\"")
endforeach()
list(JOIN TORCHAMP_FATBIN_ARCHS_QUOTED ", " TORCHAMP_FATBIN_ARCHS_QUOTED)
set(TORCHAMP_FULL_VERSION "${PROJECT_VERSION}")
if(TORCHAMP_LOCAL_VERSION)
  string(APPEND TORCHAMP_FULL_VERSION "+${TORCHAMP_LOCAL_VERSION}")
endif()
configure_file(cmake/build_config.h.in "${PROJECT_BINARY_DIR}/generated/build_config.h" @ONLY)

file(GLOB TORCHAMP_SOURCES CONFIGURE_DEPENDS
  csrc/aten/*.cpp csrc/autocast/*.cpp csrc/backends/*.cpp csrc/checkpoint/*.cpp csrc/clip/*.cpp csrc/core/*.cpp csrc/optim/*.cpp csrc/scaler/*.cpp
  csrc/cpu/*.cpp csrc/cuda/*.cpp csrc/float8/*.cpp csrc/frontend/*.cpp csrc/frontend/checkpoint/*.cpp
  csrc/frontend/optim/*.cpp csrc/graphs/*.cpp csrc/ops/*.cpp csrc/telemetry/*.cpp)
file(GLOB TORCHAMP_CPU_SOURCES CONFIGURE_DEPENDS csrc/cpu/*.cpp)
set(TORCHAMP_CPU_OPTIONS -O3 -fno-math-errno -fno-trapping-math)
set_source_files_properties(${TORCHAMP_CPU_SOURCES} PROPERTIES COMPILE_OPTIONS "${TORCHAMP_CPU_OPTIONS}")

# Parsing torch's headers takes ten times as long as compiling the rest of one of these files.
set(TORCHAMP_CORE_SOURCES ${TORCHAMP_SOURCES})
list(FILTER TORCHAMP_CORE_SOURCES EXCLUDE REGEX "csrc/(backends|cpu|aten|cuda|checkpoint/checksums)")
set_source_files_properties(${TORCHAMP_CORE_SOURCES} PROPERTIES UNITY_GROUP core)

# With g++, compile with OpenMP, because ATen's parallel_for is inline and needs it, but do not link it:
# the symbols come from the copy that torch loads. A second copy would create a second thread pool.
# torch's copy lacks the symbols of other compilers' OpenMP, so those link their own.
add_library(torchamp_openmp INTERFACE)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(torchamp_openmp INTERFACE -fopenmp)
else()
  find_package(OpenMP COMPONENTS CXX)
  if(OpenMP_CXX_FOUND)
    target_link_libraries(torchamp_openmp INTERFACE OpenMP::OpenMP_CXX)
  else()
    message(WARNING "torchamp: this compiler has no OpenMP (libomp-dev); the CPU ops use one thread")
  endif()
endif()

# The headers are system headers to a project that adds torchamp as a subdirectory, as to one that finds
# it: its warnings do not apply to them.
set(TORCHAMP_INCLUDES_AS "")
if(NOT TORCHAMP_TOP_LEVEL)
  set(TORCHAMP_INCLUDES_AS SYSTEM)
endif()

function(torchamp_public_properties target)
  target_compile_features(${target} PUBLIC cxx_std_${TORCHAMP_CXX_STANDARD})
  target_include_directories(${target} ${TORCHAMP_INCLUDES_AS} PUBLIC
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>" "$<INSTALL_INTERFACE:include>")
  target_link_libraries(${target} PUBLIC torchamp::torch)
endfunction()

# A separate target, because all objects of a target wait for the generated sources of any of them: the
# library's objects would wait for nvcc. Targets that link the library's objects also get this one.
add_library(torchamp_kernel_data OBJECT ${TORCHAMP_KERNEL_DATA})
target_include_directories(torchamp_kernel_data PRIVATE csrc)
set_target_properties(torchamp_kernel_data PROPERTIES
  POSITION_INDEPENDENT_CODE ON CXX_STANDARD 17 CXX_EXTENSIONS OFF
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)

# ARGN: sources.
function(torchamp_add_objects target)
  add_library(${target} OBJECT ${ARGN})
  torchamp_public_properties(${target})
  target_compile_options(${target} PRIVATE -Wall -Wextra -ffp-contract=off)
  target_link_libraries(${target} PRIVATE torchamp_openmp ${CMAKE_DL_LIBS})
  set_target_properties(${target} PROPERTIES
    POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF UNITY_BUILD ${TORCHAMP_UNITY_BUILD}
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
endfunction()

torchamp_add_objects(torchamp_objects ${TORCHAMP_SOURCES})
target_sources(torchamp_objects INTERFACE $<TARGET_OBJECTS:torchamp_kernel_data>)
target_include_directories(torchamp_objects PRIVATE csrc "${PROJECT_BINARY_DIR}/generated")
set_target_properties(torchamp_objects PROPERTIES UNITY_BUILD_MODE GROUP)

# csrc/tools, in two translation units. The first target finds no headers of csrc but the tools'. The
# doctor, in the second, opens libraries of CUDA, as csrc/cuda does.
file(GLOB TORCHAMP_TOOLS_SOURCES CONFIGURE_DEPENDS csrc/tools/inspect/*.cpp)
file(GLOB TORCHAMP_CUDA_TOOLS_SOURCES CONFIGURE_DEPENDS csrc/tools/doctor/*.cpp)
list(FILTER TORCHAMP_CUDA_TOOLS_SOURCES EXCLUDE REGEX "/main.cpp$")
torchamp_add_objects(torchamp_tools ${TORCHAMP_TOOLS_SOURCES})
torchamp_add_objects(torchamp_cuda_tools ${TORCHAMP_CUDA_TOOLS_SOURCES})
target_include_directories(torchamp_tools PRIVATE csrc/tools)
target_include_directories(torchamp_cuda_tools PRIVATE csrc csrc/tools)
set_target_properties(torchamp_tools torchamp_cuda_tools PROPERTIES UNITY_BUILD_BATCH_SIZE 0)

add_library(torchamp SHARED
  $<TARGET_OBJECTS:torchamp_objects> $<TARGET_OBJECTS:torchamp_tools>
  $<TARGET_OBJECTS:torchamp_cuda_tools> $<TARGET_OBJECTS:torchamp_kernel_data>)
add_library(torchamp::torchamp ALIAS torchamp)
torchamp_public_properties(torchamp)
target_link_libraries(torchamp PRIVATE $<BUILD_INTERFACE:torchamp_openmp> ${CMAKE_DL_LIBS})
target_link_options(torchamp PRIVATE "-Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/torchamp.map")
set_target_properties(torchamp PROPERTIES
  LINK_DEPENDS "${PROJECT_SOURCE_DIR}/cmake/torchamp.map" LINKER_LANGUAGE CXX LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
