// What libcuda.so.1 of the tests tells beyond the driver's functions.
//
// It executes PTX on the CPU as soon as it is launched, with the driver's refusals. The environment
// chooses the device:
//   TORCHAMP_PTX_CAPABILITY     10 · major + minor; default 90
//   TORCHAMP_PTX_DRIVER         the driver's version; default 13090
//   TORCHAMP_PTX_OUT_OF_MEMORY  the number of the module load that fails, from 1; default: none
//   TORCHAMP_PTX_SEED           interleaves blocks and delays their stores, at random
#pragma once

#include <cstdint>

extern "C" {

/// Bytes of global memory that all launches so far loaded and stored.
void ptxTraffic(std::uint64_t* loaded, std::uint64_t* stored);

/// Calls visit for each loaded kernel: how many of its instructions were executed, of how many.
void ptxCoverage(void (*visit)(const char* kernel, int executed, int instructions));

/// The message of the last fault of a kernel; empty if there was none.
const char* ptxFault();

/// Begins to capture a stream: its launches are kept, not executed.
int ptxBeginCapture(void* stream);

/// Ends the capture. 901 if it was invalidated.
int ptxEndCapture(void* stream);

/// Executes what the last capture kept.
int ptxReplay();
}
