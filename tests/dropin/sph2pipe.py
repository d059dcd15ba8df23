"""`sph2pipe -f wav -p -c 1 FILE`, where the real one is not installed: the first channel as 16-bit WAV, on stdout."""

import io
import sys

import soundfile

samples, rate = soundfile.read(sys.argv[-1], dtype="int16", always_2d=True)
wav = io.BytesIO()  # a header is written last, and stdout cannot be wound back
soundfile.write(wav, samples[:, 0], rate, format="WAV", subtype="PCM_16")
sys.stdout.buffer.write(wav.getvalue())
