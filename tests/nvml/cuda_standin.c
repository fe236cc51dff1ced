/* A libcuda.so.1 without a GPU, for what perfgate tries first of all in a sandbox.
 *
 * Its device node, NODE, is made by the first program that may (outside of the sandbox); without it there is no device.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#ifndef NODE
#define NODE "/dev/null"
#endif
#ifndef COUNT
#define COUNT 8
#endif
#ifndef FAILING
#define FAILING ""
#endif

int cuInit(unsigned flags) {
    (void)flags;
    int node = open(NODE, O_RDWR | O_CREAT, 0666);
    if (node < 0) return 100;
    close(node);
    return 0;
}
int cuDeviceGetCount(int *out) { return *out = COUNT, 0; }
int cuDeviceGet(int *out, int index) { return *out = index, 0; }
int cuDevicePrimaryCtxRetain(void **out, int device) { return *out = (void *)(long)(device + 1), 0; }
int cuCtxSetCurrent(void *context) { return context ? 0 : 201; }
int cuMemAlloc_v2(unsigned long long *out, size_t bytes) { return *out = bytes, FAILING[0] ? 2 : 0; }
int cuMemFree_v2(unsigned long long memory) { return memory ? 0 : 1; }
int cuDeviceCanAccessPeer(int *out, int device, int other) { return *out = device / 4 == other / 4, 0; }
int cuCtxEnablePeerAccess(void *context, unsigned flags) { return context && !flags ? 0 : 1; }
int cuGetErrorName(int code, const char **out) {
    *out = code == 100 ? "CUDA_ERROR_NO_DEVICE" : code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN";
    return 0;
}
