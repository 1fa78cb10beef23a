/* A Vulkan driver that loses its device on purpose. It forwards to the driver DRIVER and fails every submission once
   the file LOST exists. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef void (*Function)(void);
typedef Function (*Lookup)(void *, const char *);
typedef int (*Submit)(void *, unsigned, const void *, void *);
static Lookup lookup, device_lookup;
static Submit submit, submit2;
static int lost(void) { return access(getenv("LOST"), F_OK) == 0; }
static int lost_submit(void *q, unsigned n, const void *s, void *f) { return lost() ? -4 : submit(q, n, s, f); }
static int lost_submit2(void *q, unsigned n, const void *s, void *f) { return lost() ? -4 : submit2(q, n, s, f); }
static Function replaced(const char *name, Function found) {
  if (found && !strcmp(name, "vkQueueSubmit")) { submit = (Submit)found; return (Function)lost_submit; }
  if (found && (!strcmp(name, "vkQueueSubmit2") || !strcmp(name, "vkQueueSubmit2KHR"))) { submit2 = (Submit)found; return (Function)lost_submit2; }
  return found;
}
static Function of_device(void *device, const char *name) { return replaced(name, device_lookup(device, name)); }
Function vk_icdGetInstanceProcAddr(void *instance, const char *name) {
  if (!lookup) lookup = (Lookup)dlsym(dlopen(getenv("DRIVER"), RTLD_NOW), "vk_icdGetInstanceProcAddr");
  Function found = lookup(instance, name);
  if (found && !strcmp(name, "vkGetDeviceProcAddr")) { device_lookup = (Lookup)found; return (Function)of_device; }
  return replaced(name, found);
}
int vk_icdNegotiateLoaderICDInterfaceVersion(unsigned *version) {
  int (*real)(unsigned *) = (int (*)(unsigned *))dlsym(dlopen(getenv("DRIVER"), RTLD_NOW), "vk_icdNegotiateLoaderICDInterfaceVersion");
  return real(version);
}
