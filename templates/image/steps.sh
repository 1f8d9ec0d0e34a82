# Malformed files and threads, then a file with known pixels: red, green; blue, white. Another format than bmp needs a
# file of its own here.
check --contract --op "${CHECKS:-*}" ./@stem@.so
if [ template = bmp ]; then
    printf 'BM\106\0\0\0\0\0\0\0\066\0\0\0\050\0\0\0\2\0\0\0\2\0\0\0\1\0\030\0\0\0\0\0\020\0\0\0' >sample.bmp
    printf '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' >>sample.bmp
    printf '\377\0\0\377\377\377\0\0\0\0\377\0\377\0\0\0' >>sample.bmp
    ./try sample.bmp
    [ "$(./try sample.bmp)" = "2 x 2: ff0000 00ff00 0000ff ffffff" ] || { echo "wrong pixels"; exit 1; }
else
    echo "no file of the format template is decoded yet: add one to steps.sh"
fi
