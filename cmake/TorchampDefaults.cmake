# What a build of torchamp alone gets without asking: Release, ccache where it is installed, and
# compile_commands.json. A project that adds torchamp as a subdirectory keeps its own choices.

if(TORCHAMP_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, Debug or RelWithDebInfo" FORCE)
  endif()
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  find_program(TORCHAMP_CCACHE ccache)
  mark_as_advanced(TORCHAMP_CCACHE)
  if(TORCHAMP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${TORCHAMP_CCACHE}")
  endif()
endif()
