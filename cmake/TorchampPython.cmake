# The Python package in the build tree: `PYTHONPATH=<build>/python python -c "import torchamp"`. The
# compiled module is beside symlinks to the sources, so edited Python files take effect immediately.

set(TORCHAMP_PYTHON_SOABI "" CACHE STRING
    "What the module's file is called by, as cpython-311-aarch64-linux-gnu; empty: that of this Python, or of CPython when cross-compiling")

if(CMAKE_CROSSCOMPILING)  # the Python that runs here is for another processor
  find_package(Python3 COMPONENTS Development.Module)
  if(NOT Python3_FOUND)
    message(FATAL_ERROR "torchamp: expected -DPython3_INCLUDE_DIR=<folder> with the Python.h of a Python "
      "for ${CMAKE_SYSTEM_PROCESSOR}, got \"${Python3_INCLUDE_DIR}\"; "
      "-DTORCHAMP_BUILD_PYTHON=OFF builds the library alone")
  endif()
  set(_TORCHAMP_SOABI
    "cpython-${Python3_VERSION_MAJOR}${Python3_VERSION_MINOR}-${CMAKE_SYSTEM_PROCESSOR}-linux-gnu")
else()
  find_package(Python3 COMPONENTS Interpreter Development.Module REQUIRED)
  set(_TORCHAMP_SOABI "${Python3_SOABI}")
endif()
if(TORCHAMP_PYTHON_SOABI)
  set(_TORCHAMP_SOABI "${TORCHAMP_PYTHON_SOABI}")
endif()
if(NOT _TORCHAMP_SOABI)
  message(FATAL_ERROR "torchamp: expected -DTORCHAMP_PYTHON_SOABI=<name>, as cpython-311-x86_64-linux-gnu, "
    "because this Python names none")
endif()

set(TORCHAMP_PYTHON_PACKAGE "${PROJECT_BINARY_DIR}/python/torchamp")
file(GLOB_RECURSE _TORCHAMP_PYTHON_FILES "${TORCHAMP_PYTHON_PACKAGE}/*.py")
if(_TORCHAMP_PYTHON_FILES)
  file(REMOVE ${_TORCHAMP_PYTHON_FILES})  # of modules that have moved since
endif()
configure_file(cmake/built_for.py.in "${TORCHAMP_PYTHON_PACKAGE}/_built_for.py" @ONLY)

file(GLOB_RECURSE _TORCHAMP_PYTHON_FILES CONFIGURE_DEPENDS
  RELATIVE "${PROJECT_SOURCE_DIR}/python/torchamp" "${PROJECT_SOURCE_DIR}/python/torchamp/*.py")
list(REMOVE_ITEM _TORCHAMP_PYTHON_FILES _built_for.py)  # of an editable installation
foreach(file IN LISTS _TORCHAMP_PYTHON_FILES)
  get_filename_component(folder "${TORCHAMP_PYTHON_PACKAGE}/${file}" DIRECTORY)
  file(MAKE_DIRECTORY "${folder}")
  file(CREATE_LINK "${PROJECT_SOURCE_DIR}/python/torchamp/${file}"
       "${TORCHAMP_PYTHON_PACKAGE}/${file}" SYMBOLIC)
endforeach()

# torch/include comes before Python's include folders, which may contain another pybind11.
file(GLOB _TORCHAMP_PYTHON_SOURCES CONFIGURE_DEPENDS csrc/python/*.cpp)
add_library(torchamp_python MODULE ${_TORCHAMP_PYTHON_SOURCES})
target_compile_options(torchamp_python PRIVATE -Wall -Wextra -ffp-contract=off)
target_include_directories(torchamp_python PRIVATE csrc csrc/tools)
target_link_libraries(torchamp_python PRIVATE torchamp::torchamp Python3::Module
  "${TORCHAMP_TORCH_DIR}/lib/libtorch_python.so")
set_target_properties(torchamp_python PROPERTIES
  OUTPUT_NAME _C PREFIX "" SUFFIX ".${_TORCHAMP_SOABI}.so" CXX_EXTENSIONS OFF
  UNITY_BUILD ${TORCHAMP_UNITY_BUILD} UNITY_BUILD_BATCH_SIZE 0
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
  LIBRARY_OUTPUT_DIRECTORY "${TORCHAMP_PYTHON_PACKAGE}")
