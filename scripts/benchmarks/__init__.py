"""What measures our own code: cycles, forwards, memory, losslessness, intervals. Users run what lies above."""
