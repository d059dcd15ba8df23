/* A library with NVML's entry points and no GPU behind it, for tests of counts, routing and pinning: NO CUDA IS RUN.

   NVML_STUB holds the number of MIG parts of each GPU, such as "0,0,2" for two whole GPUs and one that is cut in two;
   empty: a driver and no GPU; not set: no driver. Built by tests/gpu/test_local_gpu.py as libnvidia-ml.so.1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9 };
enum { MOST_GPUS = 16, MOST_PARTS = 7 };

typedef struct { int gpu, part; } Device; /* part -1: the whole GPU */

static Device devices[MOST_GPUS][MOST_PARTS + 1];
static int parts[MOST_GPUS], count;

int nvmlInit_v2(void) {
    const char *given = getenv("NVML_STUB");
    if (!given) return DRIVER_NOT_LOADED;
    count = 0;
    for (const char *at = given; *at && count < MOST_GPUS; count++) {
        parts[count] = atoi(at);
        for (int part = -1; part < MOST_PARTS; part++) devices[count][part + 1] = (Device){count, part};
        at = strchr(at, ',') ? strchr(at, ',') + 1 : at + strlen(at);
    }
    return SUCCESS;
}
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "stub error"; }

int nvmlDeviceGetCount_v2(unsigned *found) { *found = count; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **found) {
    if ((int)index >= count) return INVALID_ARGUMENT;
    *found = &devices[index][0];
    return SUCCESS;
}
int nvmlDeviceGetUUID(Device *device, char *text, unsigned length) {
    if (device->part < 0) snprintf(text, length, "GPU-%08d-stub", device->gpu);
    else snprintf(text, length, "MIG-%08d-%d-stub", device->gpu, device->part);
    return SUCCESS;
}
int nvmlDeviceGetName(Device *device, char *text, unsigned length) {
    snprintf(text, length, "Stub %d", device->gpu);
    return SUCCESS;
}
int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    *current = *pending = parts[device->gpu] > 0;
    return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *found) { (void)device; *found = MOST_PARTS; return SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned number, Device **found) {
    if ((int)number >= parts[device->gpu]) return NOT_FOUND;
    *found = &devices[device->gpu][number + 1];
    return SUCCESS;
}

/* What Dask's scheduler and workers ask once NVML is there. */
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Utilization;

int nvmlSystemGetDriverVersion(char *text, unsigned length) { snprintf(text, length, "0.0.stub"); return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12090; return SUCCESS; }
int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }
int nvmlDeviceIsMigDeviceHandle(Device *device, unsigned *is) { *is = device->part >= 0; return SUCCESS; }
int nvmlDeviceGetIndex(Device *device, unsigned *index) { *index = device->gpu; return SUCCESS; }
int nvmlDeviceGetHandleByUUID(const char *uuid, Device **found) {
    char own[64];
    for (int gpu = 0; gpu < count; gpu++) {
        for (int part = -1; part < parts[gpu]; part++) {
            *found = &devices[gpu][part + 1];
            nvmlDeviceGetUUID(*found, own, sizeof own);
            if (!strcmp(own, uuid)) return SUCCESS;
        }
    }
    return NOT_FOUND;
}
int nvmlDeviceGetMemoryInfo(Device *device, Memory *found) {
    (void)device;
    *found = (Memory){8ULL << 30, 8ULL << 30, 0};
    return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(Device *device, Utilization *found) {
    (void)device;
    *found = (Utilization){0, 0};
    return SUCCESS;
}
