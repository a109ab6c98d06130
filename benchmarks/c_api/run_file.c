/* Runs a TFLite file on images through the C API of LiteRT: libLiteRt.so of ai-edge-litert.
 *
 *     gcc -std=c11 -Wall run_file.c -o run_file PATH/libLiteRt.so -Wl,-rpath,PATH
 *     ./run_file model.tflite images outputs
 *
 * `images` holds inputs of the file, one behind the other, and `outputs` gets all outputs for
 * each. The wheel has no headers: what is needed of the API is declared here, as
 * ai-edge-litert 2.3.0 has it.
 */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Status;
typedef void* Handle;

enum { OK = 0, CPU = 1, READ = 0, WRITE = 1, MOST_AXES = 8 };

typedef struct {
  unsigned int rank : 7;
  unsigned int has_strides : 1;
  int32_t dimensions[MOST_AXES];
  uint32_t strides[MOST_AXES];
} Layout;

typedef struct {
  int element_type;
  Layout layout;
} TensorType;

Status LiteRtCreateEnvironment(int count, const void* options, Handle* environment);
void LiteRtDestroyEnvironment(Handle environment);
Status LiteRtCreateModelFromFile(Handle environment, const char* path, Handle* model);
void LiteRtDestroyModel(Handle model);
Status LiteRtGetModelSignature(Handle model, size_t index, Handle* signature);
Status LiteRtGetNumSignatureOutputs(Handle signature, size_t* count);
Status LiteRtGetSignatureInputTensorByIndex(Handle signature, size_t index, Handle* tensor);
Status LiteRtGetSignatureOutputTensorByIndex(Handle signature, size_t index, Handle* tensor);
Status LiteRtGetRankedTensorType(Handle tensor, TensorType* type);
Status LiteRtCreateOptions(Handle* options);
void LiteRtDestroyOptions(Handle options);
Status LiteRtSetOptionsHardwareAccelerators(Handle options, int accelerators);
Status LiteRtCreateCompiledModel(Handle environment, Handle model, Handle options,
                                 Handle* compiled);
void LiteRtDestroyCompiledModel(Handle compiled);
Status LiteRtGetCompiledModelInputBufferRequirements(Handle compiled, size_t signature,
                                                     size_t index, Handle* requirements);
Status LiteRtGetCompiledModelOutputBufferRequirements(Handle compiled, size_t signature,
                                                      size_t index, Handle* requirements);
Status LiteRtCreateManagedTensorBufferFromRequirements(Handle environment, const TensorType* type,
                                                       Handle requirements, Handle* buffer);
void LiteRtDestroyTensorBuffer(Handle buffer);
Status LiteRtGetTensorBufferPackedSize(Handle buffer, size_t* size);
Status LiteRtLockTensorBuffer(Handle buffer, void** address, int mode);
Status LiteRtUnlockTensorBuffer(Handle buffer);
Status LiteRtRunCompiledModel(Handle compiled, size_t signature, size_t inputs, Handle* input,
                              size_t outputs, Handle* output);

#define CHECK(call)                                                       \
  do {                                                                    \
    Status status = (call);                                               \
    if (status != OK) {                                                   \
      fprintf(stderr, "%s: received status %d, expected 0\n", #call, status); \
      exit(1);                                                            \
    }                                                                     \
  } while (0)

static FILE* opened(const char* path, const char* mode) {
  FILE* file = fopen(path, mode);
  if (!file) {
    perror(path);
    exit(1);
  }
  return file;
}

/* A buffer for input `index` of a signature if it is to be written, for that output if not. */
static Handle buffer_of(Handle environment, Handle compiled, Handle signature, size_t index,
                        int mode) {
  Handle tensor, requirements, buffer;
  TensorType type;
  if (mode == WRITE) {
    CHECK(LiteRtGetSignatureInputTensorByIndex(signature, index, &tensor));
    CHECK(LiteRtGetCompiledModelInputBufferRequirements(compiled, 0, index, &requirements));
  } else {
    CHECK(LiteRtGetSignatureOutputTensorByIndex(signature, index, &tensor));
    CHECK(LiteRtGetCompiledModelOutputBufferRequirements(compiled, 0, index, &requirements));
  }
  CHECK(LiteRtGetRankedTensorType(tensor, &type));
  CHECK(LiteRtCreateManagedTensorBufferFromRequirements(environment, &type, requirements, &buffer));
  return buffer;
}

int main(int count, char** arguments) {
  if (count != 4) {
    fprintf(stderr, "usage: %s model.tflite images outputs\n", arguments[0]);
    return 2;
  }
  FILE* images = opened(arguments[2], "rb");
  FILE* outputs = opened(arguments[3], "wb");

  Handle environment, model, options, compiled;
  CHECK(LiteRtCreateEnvironment(0, NULL, &environment));
  CHECK(LiteRtCreateModelFromFile(environment, arguments[1], &model));
  CHECK(LiteRtCreateOptions(&options));
  CHECK(LiteRtSetOptionsHardwareAccelerators(options, CPU));
  CHECK(LiteRtCreateCompiledModel(environment, model, options, &compiled));

  Handle signature, input;
  size_t num_outputs, image_bytes;
  CHECK(LiteRtGetModelSignature(model, 0, &signature));
  CHECK(LiteRtGetNumSignatureOutputs(signature, &num_outputs));
  input = buffer_of(environment, compiled, signature, 0, WRITE);
  Handle* output = calloc(num_outputs, sizeof *output);
  for (size_t i = 0; i < num_outputs; i++) {
    output[i] = buffer_of(environment, compiled, signature, i, READ);
  }

  CHECK(LiteRtGetTensorBufferPackedSize(input, &image_bytes));
  char* image = malloc(image_bytes);
  while (fread(image, 1, image_bytes, images) == image_bytes) {
    void* memory;
    CHECK(LiteRtLockTensorBuffer(input, &memory, WRITE));
    memcpy(memory, image, image_bytes);
    CHECK(LiteRtUnlockTensorBuffer(input));
    CHECK(LiteRtRunCompiledModel(compiled, 0, 1, &input, num_outputs, output));
    for (size_t i = 0; i < num_outputs; i++) {
      size_t bytes;
      CHECK(LiteRtGetTensorBufferPackedSize(output[i], &bytes));
      CHECK(LiteRtLockTensorBuffer(output[i], &memory, READ));
      fwrite(memory, 1, bytes, outputs);
      CHECK(LiteRtUnlockTensorBuffer(output[i]));
    }
  }
  free(image);
  fclose(images);

  LiteRtDestroyTensorBuffer(input);
  for (size_t i = 0; i < num_outputs; i++) {
    LiteRtDestroyTensorBuffer(output[i]);
  }
  free(output);
  LiteRtDestroyCompiledModel(compiled);
  LiteRtDestroyOptions(options);
  LiteRtDestroyModel(model);
  LiteRtDestroyEnvironment(environment);
  if (ferror(outputs) || fclose(outputs) != 0) {
    perror(arguments[3]);
    return 1;
  }
  return 0;
}
