/* A libnvidia-ml.so.1 without a GPU: answers from a scene, a text file named by NVML_SCENE.
 *
 *   driver=590.48.01            of the box
 *   count=8
 *   gpu.name=…                  of every GPU
 *   gpu3.pcie_gen=3             of one GPU: goes before gpu.
 *   gpu3.processes=4711:1024,4712:2048      pid:MiB
 *   gpu2.error=15               every call on this GPU returns this code (15: lost)
 *   unsupported=nvmlDeviceGetEccMode,…      return NVML_ERROR_NOT_SUPPORTED
 *   [if /some/path]             another scene, up to the next [: it plays while that path exists
 *
 * Of several scenes the last one whose path exists plays, alone; without any it is the one at the top. Within a
 * scene the last line wins. The file is read anew when it changes, so a scene can move while a process
 * runs. Only what perfgate asks for is here; pynvml reports any other function as not found.
 */
#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, TOO_SMALL = 7, NO_DRIVER = 9 };
enum { MAX_LINES = 8192, MAX_GPUS = 16, MAX_SECTIONS = 64 };

typedef struct { int section; char key[128], value[2048]; } line_t;
typedef struct { int index; } device_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } process_t;
typedef struct { unsigned long long reference, violation; } violation_t;

static line_t lines[MAX_LINES];
static char sections[MAX_SECTIONS][256]; /* paths; the first is always there */
static int line_count = 0, section_count = 1, initialised = 0;
static struct timespec read_at;
static ino_t read_inode;
static device_t devices[MAX_GPUS];
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;

static char *trimmed(char *text) {
    while (isspace((unsigned char)*text)) text++;
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1])) *--end = 0;
    return text;
}

static void read_scene(FILE *file) {
    char text[4096];
    line_count = 0, section_count = 1;
    while (fgets(text, sizeof text, file) && line_count < MAX_LINES) {
        char *line = trimmed(text), *equals;
        if (*line == '#' || !*line) continue;
        if (*line == '[') {
            if (section_count < MAX_SECTIONS) sscanf(line, "[if %255[^]]]", sections[section_count++]);
        } else if ((equals = strchr(line, '='))) {
            *equals = 0;
            line_t *entry = &lines[line_count++];
            entry->section = section_count - 1;
            snprintf(entry->key, sizeof entry->key, "%s", trimmed(line));
            snprintf(entry->value, sizeof entry->value, "%s", trimmed(equals + 1));
        }
    }
}

static void refresh(void) {
    const char *path = getenv("NVML_SCENE");
    struct stat now;
    if (!path || stat(path, &now)) {
        line_count = 0, read_inode = 0;
        return;
    }
    if (now.st_ino == read_inode && now.st_mtim.tv_sec == read_at.tv_sec && now.st_mtim.tv_nsec == read_at.tv_nsec) return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    read_scene(file);
    fclose(file);
    read_inode = now.st_ino;
    read_at = now.st_mtim;
}

static int playing(void) {
    int section = section_count - 1;
    while (section > 0 && access(sections[section], F_OK)) section--;
    return section;
}

static int find(const char *key, char *out, size_t size) {
    int section = playing();
    for (int i = line_count - 1; i >= 0; i--)
        if (lines[i].section == section && !strcmp(lines[i].key, key)) {
            snprintf(out, size, "%s", lines[i].value);
            return 1;
        }
    return 0;
}

/* The value of one GPU, else of all GPUs. */
static int of_gpu(device_t *device, const char *name, char *out, size_t size) {
    char key[160];
    snprintf(key, sizeof key, "gpu%d.%s", device->index, name);
    if (find(key, out, size)) return 1;
    snprintf(key, sizeof key, "gpu.%s", name);
    return find(key, out, size);
}

static int supported(const char *function) {
    char list[2048], padded[2056], needle[160];
    if (!find("unsupported", list, sizeof list)) return 1;
    snprintf(padded, sizeof padded, ",%s,", list);
    snprintf(needle, sizeof needle, ",%s,", function);
    return !strstr(padded, needle) && strcmp(list, "all");
}

static int entered(const char *function) {
    pthread_mutex_lock(&guard);
    refresh();
    return !initialised ? UNINITIALIZED : supported(function) ? SUCCESS : UNSUPPORTED;
}

static int left(int code) {
    pthread_mutex_unlock(&guard);
    return code;
}

/* A value of a GPU as text; NOT_SUPPORTED where the scene does not give it. Takes and gives back the lock. */
static int ask(const char *function, device_t *device, const char *name, char *out, size_t size) {
    char error[16];
    int code = entered(function);
    if (device && of_gpu(device, "error", error, sizeof error) && atoi(error)) return left(atoi(error));
    if (code == SUCCESS && !device) code = INVALID;
    if (code == SUCCESS && !of_gpu(device, name, out, size)) code = UNSUPPORTED;
    return left(code);
}

static int ask_number(const char *function, device_t *device, const char *name, unsigned *out) {
    char text[64];
    int code = ask(function, device, name, text, sizeof text);
    if (code == SUCCESS) *out = (unsigned)strtoul(text, NULL, 0);
    return code;
}

#define TEXT(function, name) \
    int function(device_t *device, char *out, unsigned size) { return ask(#function, device, name, out, size); }
#define NUMBER(function, name) \
    int function(device_t *device, unsigned *out) { return ask_number(#function, device, name, out); }
#define PAIR(function, name) \
    int function(device_t *device, unsigned *now, unsigned *pending) { \
        int code = ask_number(#function, device, name, now); \
        if (code == SUCCESS) *pending = *now; \
        return code; \
    }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    char text[16];
    pthread_mutex_lock(&guard);
    refresh();
    for (int i = 0; i < MAX_GPUS; i++) devices[i].index = i;
    if (find("init_error", text, sizeof text)) return left(atoi(text));
    if (!line_count) return left(NO_DRIVER);
    initialised = 1;
    return left(SUCCESS);
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }

static int box_text(const char *function, const char *key, char *out, unsigned size) {
    int code = entered(function);
    if (code == SUCCESS && !find(key, out, size)) code = UNSUPPORTED;
    return left(code);
}
int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    return box_text("nvmlSystemGetDriverVersion", "driver", out, size);
}
int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    char text[32];
    int code = box_text("nvmlSystemGetCudaDriverVersion_v2", "cuda", text, sizeof text);
    if (code == SUCCESS) *out = atoi(text);
    return code;
}
int nvmlDeviceGetCount_v2(unsigned *out) {
    char text[32];
    int code = box_text("nvmlDeviceGetCount_v2", "count", text, sizeof text);
    if (code == SUCCESS) *out = (unsigned)atoi(text);
    return code;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **out) {
    char text[16];
    if (index >= MAX_GPUS) return INVALID;
    int code = ask("nvmlDeviceGetHandleByIndex_v2", &devices[index], "open_error", text, sizeof text);
    *out = &devices[index];
    return code == SUCCESS && atoi(text) ? atoi(text) : SUCCESS;
}

TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
NUMBER(nvmlDeviceGetPowerManagementLimit, "power_limit_mw")
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "power_default_mw")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw")
NUMBER(nvmlDeviceGetPowerUsage, "power_mw")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence")
NUMBER(nvmlDeviceGetComputeMode, "compute_mode")
NUMBER(nvmlDeviceGetPerformanceState, "pstate")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen_max")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie_gen_card")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
NUMBER(nvmlDeviceGetPcieReplayCounter, "pcie_replays")
PAIR(nvmlDeviceGetEccMode, "ecc")
PAIR(nvmlDeviceGetMigMode, "mig")

int nvmlDeviceGetTemperature(device_t *device, int sensor, unsigned *out) {
    (void)sensor;
    return ask_number("nvmlDeviceGetTemperature", device, "temperature_c", out);
}
int nvmlDeviceGetMaxClockInfo(device_t *device, int type, unsigned *out) {
    return ask_number("nvmlDeviceGetMaxClockInfo", device, type == 1 ? "sm_max_mhz" : "mem_max_mhz", out);
}
int nvmlDeviceGetClockInfo(device_t *device, int type, unsigned *out) {
    return ask_number("nvmlDeviceGetClockInfo", device, type == 1 ? "sm_mhz" : "mem_mhz", out);
}
static int reasons(const char *function, device_t *device, unsigned long long *out) {
    char text[64];
    int code = ask(function, device, "reasons", text, sizeof text);
    if (code == SUCCESS) *out = strtoull(text, NULL, 0);
    return code;
}
int nvmlDeviceGetCurrentClocksEventReasons(device_t *device, unsigned long long *out) {
    return reasons("nvmlDeviceGetCurrentClocksEventReasons", device, out);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(device_t *device, unsigned long long *out) {
    return reasons("nvmlDeviceGetCurrentClocksThrottleReasons", device, out);
}
int nvmlDeviceGetViolationStatus(device_t *device, int policy, violation_t *out) {
    char text[64];
    int code = ask("nvmlDeviceGetViolationStatus", device, policy == 1 ? "thermal_ns" : "power_ns", text, sizeof text);
    if (code == SUCCESS) out->violation = strtoull(text, NULL, 0), out->reference = 0;
    return code;
}
static int memory(const char *function, device_t *device, unsigned long long *total, unsigned long long *used) {
    char text[64];
    int code = ask(function, device, "memory_used_mib", text, sizeof text);
    if (code != SUCCESS) return code;
    *used = strtoull(text, NULL, 0) << 20;
    code = ask(function, device, "memory_total_mib", text, sizeof text);
    if (code == SUCCESS) *total = strtoull(text, NULL, 0) << 20;
    return code;
}
int nvmlDeviceGetMemoryInfo(device_t *device, memory_t *out) {
    int code = memory("nvmlDeviceGetMemoryInfo", device, &out->total, &out->used);
    if (code == SUCCESS) out->free = out->total - out->used;
    return code;
}
int nvmlDeviceGetMemoryInfo_v2(device_t *device, memory_v2_t *out) {
    int code = memory("nvmlDeviceGetMemoryInfo_v2", device, &out->total, &out->used);
    if (code == SUCCESS) out->reserved = 0, out->free = out->total - out->used;
    return code;
}
int nvmlDeviceGetPciInfo_v3(device_t *device, pci_t *out) {
    char text[64];
    int code = ask("nvmlDeviceGetPciInfo_v3", device, "bus_id", text, sizeof text);
    if (code != SUCCESS) return code;
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "%.31s", text);
    return SUCCESS;
}
int nvmlDeviceGetTopologyCommonAncestor(device_t *one, device_t *other, int *out) {
    char key[32], text[32];
    snprintf(key, sizeof key, "topology%d", other->index);
    int code = ask("nvmlDeviceGetTopologyCommonAncestor", one, key, text, sizeof text);
    if (code == UNSUPPORTED) code = ask("nvmlDeviceGetTopologyCommonAncestor", one, "topology", text, sizeof text);
    if (code == SUCCESS) *out = atoi(text);
    return code;
}
int nvmlDeviceGetNvLinkState(device_t *device, unsigned link, unsigned *out) {
    unsigned up = 0;
    int code = ask_number("nvmlDeviceGetNvLinkState", device, "nvlinks", &up);
    unsigned all = up;
    if (code == SUCCESS && ask_number("nvmlDeviceGetNvLinkState", device, "nvlinks_all", &all) != SUCCESS) all = up;
    if (code == SUCCESS && link >= all) return INVALID;
    if (code == SUCCESS) *out = link < up;
    return code;
}
typedef struct { unsigned char cluster[16]; int status; unsigned clique; unsigned char state; } fabric_t;
int nvmlDeviceGetGpuFabricInfo(device_t *device, fabric_t *out) {
    unsigned state;
    int code = ask_number("nvmlDeviceGetGpuFabricInfo", device, "fabric", &state);
    if (code == SUCCESS) memset(out, 0, sizeof *out), out->state = (unsigned char)state;
    return code;
}
static int processes(const char *function, device_t *device, const char *key, unsigned *count, process_t *out) {
    char text[512];
    unsigned found = 0;
    int code = ask(function, device, key, text, sizeof text);
    if (code == UNSUPPORTED && supported(function)) text[0] = 0, code = SUCCESS;
    if (code != SUCCESS) return code;
    for (char *save, *item = strtok_r(text, ",", &save); item; item = strtok_r(NULL, ",", &save), found++)
        if (out && found < *count) {
            unsigned long long mib = 0;
            memset(&out[found], 0, sizeof *out);
            sscanf(item, "%u:%llu", &out[found].pid, &mib);
            out[found].memory = mib << 20;
        }
    code = found > (out ? *count : 0) ? TOO_SMALL : SUCCESS;
    *count = found;
    return code;
}
int nvmlDeviceGetComputeRunningProcesses_v3(device_t *device, unsigned *count, process_t *out) {
    return processes("nvmlDeviceGetComputeRunningProcesses_v3", device, "processes", count, out);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(device_t *device, unsigned *count, process_t *out) {
    return processes("nvmlDeviceGetGraphicsRunningProcesses_v3", device, "graphics", count, out);
}
const char *nvmlErrorString(int code) {
    return code == 15 ? "GPU is lost" : code == 3 ? "Not Supported" : code == 9 ? "Driver Not Loaded" : "Unknown Error";
}
