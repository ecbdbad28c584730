# Finds torch by path, without importing it and without TorchConfig.cmake, which requires a CUDA
# toolkit if torch was built with CUDA. Used by the build and by the installed package.
#
# torchamp_find_torch([<folder to look in>...]) sets in the caller's scope
#   TORCHAMP_TORCH_ERROR        empty, or an error message for the user
#   TORCHAMP_TORCH_DIR          the folder with torch's include/ and lib/
#   TORCHAMP_TORCH_VERSION      "2.13.0+cpu"
#   TORCHAMP_TORCH_MINOR        "2.13"
#   TORCHAMP_TORCH_CXX11_ABI    0 or 1
#   TORCHAMP_TORCH_OPENMP       torch's own OpenMP library, or empty
# and torchamp_define_torch() creates the imported target torchamp::torch from them.
#
# Search order: TORCHAMP_TORCH_ROOT, a Torch that the project has already found, CMAKE_PREFIX_PATH, the
# given folders, the torch of Python3_EXECUTABLE or of python3, and finally find_package(Torch).

set(_TORCHAMP_PROBE "${CMAKE_CURRENT_LIST_DIR}/probe_torch.py")
set(TORCHAMP_TORCH_ROOT "" CACHE PATH "The LibTorch folder or site-packages/torch to build against")

function(_torchamp_first_torch_in out)
  foreach(folder IN LISTS ARGN)
    if(EXISTS "${folder}/lib/libtorch_cpu.so" AND EXISTS "${folder}/include/ATen/core/Tensor.h")
      get_filename_component(root "${folder}" ABSOLUTE)
      set(${out} "${root}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${out} "" PARENT_SCOPE)
endfunction()

function(_torchamp_torch_of_python out)
  set(python "${Python3_EXECUTABLE}")
  if(NOT python)
    find_program(TORCHAMP_PROBE_PYTHON NAMES python3 python)
    mark_as_advanced(TORCHAMP_PROBE_PYTHON)
    set(python "${TORCHAMP_PROBE_PYTHON}")
  endif()
  set(folder "")
  if(python)
    execute_process(COMMAND "${python}" "${_TORCHAMP_PROBE}" OUTPUT_VARIABLE folder
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  set(${out} "${folder}" PARENT_SCOPE)
endfunction()

function(_torchamp_locate_torch out)
  set(folders "")
  if(TARGET torch AND TORCH_INSTALL_PREFIX)
    list(APPEND folders "${TORCH_INSTALL_PREFIX}")
  endif()
  if(Torch_DIR)
    list(APPEND folders "${Torch_DIR}/../../..")
  endif()
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH)
    list(APPEND folders "${prefix}" "${prefix}/../.." "${prefix}/torch")
  endforeach()
  _torchamp_first_torch_in(root ${folders} ${ARGN})
  if(NOT root)
    _torchamp_torch_of_python(folder)
    _torchamp_first_torch_in(root "${folder}")
  endif()
  set(${out} "${root}" PARENT_SCOPE)
endfunction()

function(_torchamp_read_version root out)
  set(version "")
  if(EXISTS "${root}/version.py")
    file(STRINGS "${root}/version.py" line REGEX "^__version__" LIMIT_COUNT 1)
    string(REGEX REPLACE "^__version__[^'\"]*['\"]([^'\"]+)['\"].*$" "\\1" version "${line}")
  elseif(EXISTS "${root}/build-version")
    file(STRINGS "${root}/build-version" version LIMIT_COUNT 1)
  endif()
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

# By the constructor c10::Error(SourceLocation, std::string), whose name tells which std::string. Names
# of the new one alone are in both: libc10.so has parts of the C++ library.
function(_torchamp_read_cxx11_abi root out)
  file(STRINGS "${root}/lib/libc10.so" symbols REGEX "_ZN3c105ErrorC1ENS_14SourceLocationESs"
    LIMIT_COUNT 1)
  if(symbols)
    set(${out} 0 PARENT_SCOPE)
  else()
    set(${out} 1 PARENT_SCOPE)
  endif()
endfunction()

# Sets `out` to an error where torch is for another processor than what is built: by the header of an ELF
# file, whose bytes 18 and 19 name it.
function(_torchamp_check_processor root out)
  set(of_3e00 x86_64)
  set(of_b700 aarch64)
  file(READ "${root}/lib/libc10.so" machine OFFSET 18 LIMIT 2 HEX)
  set(processor "${of_${machine}}")
  set(${out} "" PARENT_SCOPE)
  if(processor AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|aarch64)$"
      AND NOT processor STREQUAL CMAKE_SYSTEM_PROCESSOR)
    set(${out} "expected a torch for ${CMAKE_SYSTEM_PROCESSOR}, got one for ${processor} in ${root}; \
-DTORCHAMP_TORCH_ROOT=<folder> chooses another" PARENT_SCOPE)
  endif()
endfunction()

# A torch with another layout than LibTorch's, such as a distribution's: found by its own package.
macro(_torchamp_find_torch_package)
  find_package(Torch QUIET)
  if(Torch_FOUND)
    set(TORCHAMP_TORCH_DIR "${TORCH_INSTALL_PREFIX}" PARENT_SCOPE)
    set(TORCHAMP_TORCH_VERSION "${Torch_VERSION}" PARENT_SCOPE)
    string(REGEX MATCH "^[0-9]+\\.[0-9]+" minor "${Torch_VERSION}")
    set(TORCHAMP_TORCH_MINOR "${minor}" PARENT_SCOPE)
    if(TORCH_CXX_FLAGS MATCHES "_GLIBCXX_USE_CXX11_ABI=0")
      set(TORCHAMP_TORCH_CXX11_ABI 0 PARENT_SCOPE)
    else()
      set(TORCHAMP_TORCH_CXX11_ABI 1 PARENT_SCOPE)
    endif()
    set(TORCHAMP_TORCH_OPENMP "" PARENT_SCOPE)
    set(TORCH_INCLUDE_DIRS "${TORCH_INCLUDE_DIRS}" PARENT_SCOPE)
    set(TORCH_LIBRARIES "${TORCH_LIBRARIES}" PARENT_SCOPE)
  else()
    set(TORCHAMP_TORCH_ERROR "no torch was found. Pass one of
  -DTORCHAMP_TORCH_ROOT=<LibTorch folder or site-packages/torch>
  -DCMAKE_PREFIX_PATH=<LibTorch folder>
  -DPython3_EXECUTABLE=<a Python that has torch>      (pip install torch)" PARENT_SCOPE)
  endif()
endmacro()

function(torchamp_find_torch)
  set(TORCHAMP_TORCH_ERROR "" PARENT_SCOPE)
  if(TORCHAMP_TORCH_ROOT)
    _torchamp_first_torch_in(root "${TORCHAMP_TORCH_ROOT}")
    if(NOT root)
      set(TORCHAMP_TORCH_ERROR "expected TORCHAMP_TORCH_ROOT to contain lib/libtorch_cpu.so and \
include/ATen, got ${TORCHAMP_TORCH_ROOT}" PARENT_SCOPE)
      return()
    endif()
  else()
    _torchamp_locate_torch(root ${ARGN})
  endif()
  if(NOT root)
    _torchamp_find_torch_package()
    return()
  endif()
  _torchamp_check_processor("${root}" error)
  set(TORCHAMP_TORCH_ERROR "${error}" PARENT_SCOPE)
  _torchamp_read_version("${root}" version)
  _torchamp_read_cxx11_abi("${root}" abi)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" minor "${version}")
  file(GLOB openmp "${root}/lib/libgomp*.so*" "${root}/../torch.libs/libgomp*.so*")
  set(TORCHAMP_TORCH_DIR "${root}" PARENT_SCOPE)
  set(TORCHAMP_TORCH_VERSION "${version}" PARENT_SCOPE)
  set(TORCHAMP_TORCH_MINOR "${minor}" PARENT_SCOPE)
  set(TORCHAMP_TORCH_CXX11_ABI ${abi} PARENT_SCOPE)
  set(TORCHAMP_TORCH_OPENMP "${openmp}" PARENT_SCOPE)
endfunction()

# All three libraries stay NEEDED even if a program does not refer to them. libtorch.so depends on
# libtorch_cuda.so in a CUDA build, so a program linked against a CPU build finds CUDA there.
# libtorchamp.so needs the other two, and only the program knows their folder. The flags are one item, so
# that CMake does not split them, and CMake does not quote it; the item after it makes CMake set the
# program's run path. The wheel's torch.libs has libraries that need each other, which a linker finds by a
# folder alone; the loader finds them by torch's own run path.
function(torchamp_define_torch)
  if(TARGET torchamp::torch)
    return()
  endif()
  set(root "${TORCHAMP_TORCH_DIR}")
  add_library(torchamp::torch INTERFACE IMPORTED GLOBAL)
  target_compile_definitions(torchamp::torch INTERFACE
    "_GLIBCXX_USE_CXX11_ABI=${TORCHAMP_TORCH_CXX11_ABI}")
  if(EXISTS "${root}/lib/libtorch_cpu.so")
    set(lib "${root}/lib")
    set(libraries "\"${lib}/libtorch.so\",\"${lib}/libtorch_cpu.so\",\"${lib}/libc10.so\"")
    target_include_directories(torchamp::torch SYSTEM INTERFACE
      "${root}/include" "${root}/include/torch/csrc/api/include")
    target_link_libraries(torchamp::torch INTERFACE
      "-Wl,--push-state,--no-as-needed,${libraries},--pop-state" "${root}/lib/libtorch_cpu.so")
    if(EXISTS "${root}/../torch.libs")
      target_link_options(torchamp::torch INTERFACE "LINKER:-rpath-link,${root}/../torch.libs")
    endif()
  else()
    target_include_directories(torchamp::torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
    target_link_libraries(torchamp::torch INTERFACE ${TORCH_LIBRARIES})
  endif()
endfunction()
