/* Stands in for TensorRT's own libraries, so that its real Python bindings can be imported on a machine without them.
   Every function is there and none does anything: classes can be looked at, nothing can be built. */
#define MAKES_NOTHING(name) void *name(void) { return 0; }
#define SAYS_ZERO(name) int name(void) { return 0; }

MAKES_NOTHING(createInferBuilder_INTERNAL)
MAKES_NOTHING(createInferRefitter_INTERNAL)
MAKES_NOTHING(createInferRuntime_INTERNAL)
MAKES_NOTHING(createNvOnnxParser_INTERNAL)
MAKES_NOTHING(createNvOnnxParserRefitter_INTERNAL)
MAKES_NOTHING(getBuilderPluginRegistry)
MAKES_NOTHING(getPluginRegistry)
SAYS_ZERO(initLibNvInferPlugins)
SAYS_ZERO(getInferLibVersion)
SAYS_ZERO(getNvOnnxParserVersion)
