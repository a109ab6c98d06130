"""Classifies one picture with an exported file.

python run_tflite.py model.tflite picture.png
"""

import sys
import zipfile

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from PIL import Image

path, picture = sys.argv[1:]
interpreter = Interpreter(path)
interpreter.allocate_tensors()
(image,), (scores,) = interpreter.get_input_details(), interpreter.get_output_details()
_, rows, columns, channels = image["shape"]
pixels = Image.open(picture).convert("RGB" if channels == 3 else "L").resize((columns, rows))
interpreter.set_tensor(image["index"], np.reshape(np.asarray(pixels), image["shape"]))
interpreter.invoke()
best = int(np.argmax(interpreter.get_tensor(scores["index"])))
labelled = zipfile.is_zipfile(path)  # a file with labels has them in an archive at its end
labels = zipfile.ZipFile(path).read("labels.txt").decode().splitlines() if labelled else None
print(best, labels[best] if labels else "")
