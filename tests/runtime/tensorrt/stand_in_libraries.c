/* Stand-ins for TensorRT's libraries, so that its real Python bindings can be imported without them.
   Every function exists and returns 0: classes can be inspected, but nothing can be built. */
#define RETURNS_NULL(name) void *name(void) { return 0; }
#define RETURNS_ZERO(name) int name(void) { return 0; }

RETURNS_NULL(createInferBuilder_INTERNAL)
RETURNS_NULL(createInferRefitter_INTERNAL)
RETURNS_NULL(createInferRuntime_INTERNAL)
RETURNS_NULL(createNvOnnxParser_INTERNAL)
RETURNS_NULL(createNvOnnxParserRefitter_INTERNAL)
RETURNS_NULL(getBuilderPluginRegistry)
RETURNS_NULL(getPluginRegistry)
RETURNS_ZERO(initLibNvInferPlugins)
RETURNS_ZERO(getInferLibVersion)
RETURNS_ZERO(getNvOnnxParserVersion)
