# Each benchmarks/cpp/*.cpp is a Google Benchmark program.

find_package(benchmark QUIET)
if(NOT benchmark_FOUND)
  message(STATUS "torchamp: no C++ benchmarks (Google Benchmark was not found: libbenchmark-dev)")
  return()
endif()

file(GLOB _TORCHAMP_BENCHMARKS CONFIGURE_DEPENDS benchmarks/cpp/*.cpp)
foreach(source IN LISTS _TORCHAMP_BENCHMARKS)
  get_filename_component(name "${source}" NAME_WE)
  add_executable(bench_${name} "${source}")
  target_include_directories(bench_${name} PRIVATE benchmarks/cpp)
  target_link_libraries(bench_${name} PRIVATE torchamp::torchamp benchmark::benchmark_main)
  set_target_properties(bench_${name} PROPERTIES
    CXX_EXTENSIONS OFF RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/benchmarks")
endforeach()
