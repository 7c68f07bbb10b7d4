/* The scans of sidecar.wire in C: where msgpack values end, what the integers of an id list are, and the form that
 * nearly every text request has.
 *
 * Every function here has a twin in Python that gives the same answers (`wire.msgpack`, `wire.spans`,
 * `wire.ids`, `wire.text`) and is used where this file was not compiled. What is wrong with a message is
 * for the twin to say: these functions only say that it is not what they were asked to find, with -1 or
 * None, and never raise for what the bytes hold. No function recurses, allocates by what a header claims,
 * or reads a byte outside of [pos, end).
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

/* Containers inside one another that a walk can be asked to follow. */
#define MAX_DEPTH 128

/* The whole size of the value behind a lead byte where that byte alone gives it, else 0. */
static uint8_t SIZE[256];

/* How an integer is read from the eight bytes at `offset` behind its lead byte: shifted right by `shift`. */
typedef struct {
    uint8_t size, offset, shift, kind;
} Integer;

/* Most ids are PLAIN: not negative, and small enough for every type. */
enum { NONE = 0, PLAIN, UNSIGNED, SIGNED };

static Integer INTEGERS[256];

/* Of the polynomial of zip files, its bits from the lowest on. */
static uint32_t CRC[256];

static void
fill_tables(void)
{
    static const uint8_t fixed[][2] = {
        {0xC0, 1}, {0xC2, 1}, {0xC3, 1}, {0xCA, 5}, {0xCB, 9}, {0xCC, 2}, {0xCD, 3}, {0xCE, 5},  {0xCF, 9},
        {0xD0, 2}, {0xD1, 3}, {0xD2, 5}, {0xD3, 9}, {0xD4, 3}, {0xD5, 4}, {0xD6, 6}, {0xD7, 10}, {0xD8, 18},
    };
    for (int lead = 0; lead < 256; lead++) {
        int fixint = lead < 0x80 || lead >= 0xE0;
        SIZE[lead] = fixint || lead == 0x80 || lead == 0x90 ? 1 : lead >= 0xA0 && lead <= 0xBF ? lead - 0xA0 + 1 : 0;
        if (fixint)
            INTEGERS[lead] = (Integer){1, 0, 56, lead < 0x80 ? PLAIN : SIGNED};
    }
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
        SIZE[fixed[i][0]] = fixed[i][1];
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
        CRC[byte] = crc;
    }
    for (int lead = 0xCC; lead <= 0xD3; lead++) {
        uint8_t kind = lead < 0xCF ? PLAIN : lead == 0xCF ? UNSIGNED : SIGNED;
        INTEGERS[lead] = (Integer){SIZE[lead], 1, 64 - 8 * (SIZE[lead] - 1), kind};
    }
}

static uint64_t
big_endian(const uint8_t *at, int width)
{
    uint64_t value = 0;
    for (int i = 0; i < width; i++)
        value = value << 8 | at[i];
    return value;
}

/* A compiler makes one load and one byte swap of this. */
static inline uint64_t
big_endian_64(const uint8_t *at)
{
    return (uint64_t)at[0] << 56 | (uint64_t)at[1] << 48 | (uint64_t)at[2] << 40 | (uint64_t)at[3] << 32 |
           (uint64_t)at[4] << 24 | (uint64_t)at[5] << 16 | (uint64_t)at[6] << 8 | (uint64_t)at[7];
}

/* How many bytes of length or count follow the lead byte of a value whose size it does not give; 0 for a
 * lead byte that says it itself, -1 for the one that the format does not use. */
static int
prefix_bytes(uint8_t lead)
{
    switch (lead) {
    case 0xC4: case 0xC7: case 0xD9:
        return 1;
    case 0xC5: case 0xC8: case 0xDA: case 0xDC: case 0xDE:
        return 2;
    case 0xC6: case 0xC9: case 0xDB: case 0xDD: case 0xDF:
        return 4;
    default:
        return lead == 0xC1 ? -1 : 0;
    }
}

/* The position after the value at `pos`; -1 if it is truncated, unknown, too deep or of too many values. */
static Py_ssize_t
walk(const uint8_t *buf, Py_ssize_t pos, Py_ssize_t end, Py_ssize_t max_depth, Py_ssize_t max_values)
{
    Py_ssize_t pending[MAX_DEPTH]; /* values still to come in each enclosing container */
    Py_ssize_t depth = 0, left = 1, total = 0;

    for (;;) {
        if (left == 0) {
            if (depth == 0)
                return pos;
            left = pending[--depth];
            continue;
        }
        if (pos >= end)
            return -1;
        uint8_t lead = buf[pos];
        left--;
        if (SIZE[lead]) {
            pos += SIZE[lead];
            if (pos > end)
                return -1;
            continue;
        }
        int width = prefix_bytes(lead);
        if (width < 0 || width > end - pos - 1)
            return -1;
        uint64_t number = width ? big_endian(buf + pos + 1, width) : lead & 0x0F;
        pos += 1 + width;
        if (lead > 0x9F && lead < 0xDC) { /* str, bin, ext */
            number += lead >= 0xC7 && lead <= 0xC9;
            if (number > (uint64_t)(end - pos))
                return -1;
            pos += (Py_ssize_t)number;
            continue;
        }
        if (lead < 0x90 || lead >= 0xDE) /* a map */
            number *= 2;
        if (number > (uint64_t)(end - pos) || depth >= max_depth || depth >= MAX_DEPTH)
            return -1;
        total += (Py_ssize_t)number;
        if (total > max_values)
            return -1;
        pending[depth++] = left;
        left = (Py_ssize_t)number;
    }
}

/* What `measure` finds out about a stretch of integers. Values beyond int64 count as its ends; of no integers
 * the least is 0 and the most -1, so that they are in every range. */
typedef struct {
    Py_ssize_t after;
    int64_t least, most;
} Range;

/* The position after an integer and its value; -1 if none stands there or it is truncated. */
static Py_ssize_t
read_int(const uint8_t *buf, Py_ssize_t pos, Py_ssize_t end, int64_t *value)
{
    if (pos >= end)
        return -1;
    Integer integer = INTEGERS[buf[pos]];
    if (integer.kind == NONE || integer.size > end - pos)
        return -1;
    uint64_t raw = big_endian(buf + pos + integer.offset, (64 - integer.shift) / 8) << integer.shift;
    if (integer.kind == SIGNED)
        *value = (int64_t)raw >> integer.shift;
    else {
        raw >>= integer.shift;
        *value = raw > INT64_MAX ? INT64_MAX : (int64_t)raw;
    }
    return pos + integer.size;
}

/* The same. Plain integers are read without a branch on their size: in a prompt that is as good as random,
 * and a wrong guess costs the processor more than the element. */
static inline Py_ssize_t
next_int(const uint8_t *buf, Py_ssize_t pos, Py_ssize_t end, int64_t *value)
{
    if (end - pos < 9)
        return read_int(buf, pos, end, value);
    Integer integer = INTEGERS[buf[pos]];
    if (integer.kind != PLAIN)
        return read_int(buf, pos, end, value);
    *value = (int64_t)(big_endian_64(buf + pos + integer.offset) >> integer.shift);
    return pos + integer.size;
}

/* Step over `count` integers and note the least and the most of them. False if they are not all integers. */
static int
measure(const uint8_t *buf, Py_ssize_t pos, Py_ssize_t end, Py_ssize_t count, Range *range)
{
    int64_t least = count ? INT64_MAX : 0, most = count ? INT64_MIN : -1, value = 0;

    if (count < 0 || count > end - pos) /* each takes a byte at least */
        return 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        pos = next_int(buf, pos, end, &value);
        if (pos < 0)
            return 0;
        least = value < least ? value : least;
        most = value > most ? value : most;
    }
    range->after = pos;
    range->least = least;
    range->most = most;
    return 1;
}

/* Arguments: a buffer and some numbers. A buffer is held for the length of one call. */

static int
take_arguments(PyObject *const *args, Py_ssize_t nargs, Py_buffer *view, Py_ssize_t *numbers, Py_ssize_t count)
{
    if (nargs != count + 1) {
        PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", count + 1, nargs);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        numbers[i] = PyLong_AsSsize_t(args[i + 1]);
        if (numbers[i] == -1 && PyErr_Occurred())
            return -1;
    }
    return PyObject_GetBuffer(args[0], view, PyBUF_SIMPLE);
}

/* Whether there is anything to read; what lies outside of the buffer is never looked at. */
static int
is_inside(const Py_buffer *view, Py_ssize_t pos, Py_ssize_t end)
{
    return pos >= 0 && pos <= end && end <= view->len;
}

PyDoc_STRVAR(skip_doc,
"skip(buf, pos, end, max_depth, max_values)\n--\n\n"
"The position after the value at `pos`, -1 if it is truncated, unknown, too deep or of too many values.");

static PyObject *
scan_skip(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer view;
    Py_ssize_t n[4];
    if (take_arguments(args, nargs, &view, n, 4) < 0)
        return NULL;
    Py_ssize_t after = is_inside(&view, n[0], n[1]) ? walk(view.buf, n[0], n[1], n[2], n[3]) : -1;
    PyBuffer_Release(&view);
    return PyLong_FromSsize_t(after);
}

PyDoc_STRVAR(bounds_doc,
"bounds(buf, pos, end, count, max_depth, max_values)\n--\n\n"
"The positions of `count` values that begin at `pos`, and the position after the last; None if one cannot be skipped.");

static PyObject *
scan_bounds(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer view;
    Py_ssize_t n[5];
    if (take_arguments(args, nargs, &view, n, 5) < 0)
        return NULL;
    Py_ssize_t pos = n[0], end = n[1], count = n[2];
    if (!is_inside(&view, pos, end) || count < 0 || count > end - pos) { /* each value takes a byte at least */
        PyBuffer_Release(&view);
        Py_RETURN_NONE;
    }
    PyObject *bounds = PyList_New(count + 1);
    for (Py_ssize_t i = 0; bounds != NULL; i++) {
        PyObject *position = PyLong_FromSsize_t(pos);
        if (position == NULL) {
            Py_CLEAR(bounds);
            break;
        }
        PyList_SET_ITEM(bounds, i, position);
        if (i == count)
            break;
        pos = walk(view.buf, pos, end, n[3], n[4]);
        if (pos < 0) {
            Py_DECREF(bounds);
            bounds = Py_NewRef(Py_None);
            break;
        }
    }
    PyBuffer_Release(&view);
    return bounds;
}

PyDoc_STRVAR(measure_doc,
"measure(buf, pos, end, count)\n--\n\n"
"(position after, least, most) of `count` integers at `pos`; None if they are not all integers.\n"
"Values beyond int64 count as its ends; of no integers the least is 0 and the most -1.");

static PyObject *
scan_measure(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer view;
    Py_ssize_t n[3];
    if (take_arguments(args, nargs, &view, n, 3) < 0)
        return NULL;
    Range range;
    int found = is_inside(&view, n[0], n[1]) && measure(view.buf, n[0], n[1], n[2], &range);
    PyBuffer_Release(&view);
    if (!found)
        Py_RETURN_NONE;
    return Py_BuildValue("(nLL)", range.after, (long long)range.least, (long long)range.most);
}

PyDoc_STRVAR(holds_doc,
"holds(buf, pos, end, ids)\n--\n\n"
"Whether one of the integers in [pos, end) is one of the sequence `ids`; None if there are not only integers.");

#define MAX_WANTED 16

static PyObject *
scan_holds(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer view;
    Py_ssize_t n[2];
    int64_t wanted[MAX_WANTED];
    if (nargs != 4) {
        PyErr_Format(PyExc_TypeError, "expected 4 arguments, got %zd", nargs);
        return NULL;
    }
    PyObject *ids = PySequence_Fast(args[3], "ids must be a sequence of integers");
    if (ids == NULL)
        return NULL;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(ids);
    if (count > MAX_WANTED)
        PyErr_Format(PyExc_ValueError, "at most %d ids can be looked for, not %zd", MAX_WANTED, count);
    for (Py_ssize_t i = 0; i < count && !PyErr_Occurred(); i++)
        wanted[i] = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(ids, i));
    Py_DECREF(ids);
    if (PyErr_Occurred() || take_arguments(args, 3, &view, n, 2) < 0)
        return NULL;
    Py_ssize_t pos = is_inside(&view, n[0], n[1]) ? n[0] : -1, end = n[1];
    int64_t value = 0;
    int hit = 0;
    while (!hit && pos >= 0 && pos < end) {
        pos = next_int(view.buf, pos, end, &value);
        for (Py_ssize_t i = 0; i < count && pos >= 0; i++)
            hit |= value == wanted[i];
    }
    PyBuffer_Release(&view);
    if (pos < 0)
        Py_RETURN_NONE;
    return PyBool_FromLong(hit);
}

PyDoc_STRVAR(text_doc,
"text(payload, tag, tails, max_tail, limit, longest)\n--\n\n"
"(string, what becomes of the payload) of an array that begins with `tag`, a string of up to 255 bytes, two nils and a\n"
"list of 1 to `longest` integers in [0, limit). Either bound may be None. `tails`, a dict, has for the bytes behind the\n"
"list how many elements the array has, and what stands in their place: None if they stay, or bytes, an integer's\n"
"bytes, None for the CRC-32 of the string, and bytes. None if the payload has another form, more than `max_tail` bytes\n"
"behind the list, or `tails` nothing for them.");

/* A bound that may be None: then it is the largest there is. */
static int
take_bound(PyObject *argument, int64_t *bound)
{
    *bound = argument == Py_None ? INT64_MAX : PyLong_AsLongLong(argument);
    return *bound == -1 && PyErr_Occurred() ? -1 : 0;
}

/* The length of an array and the position of its first element; -1 if none stands there. */
static Py_ssize_t
read_array_header(const uint8_t *buf, Py_ssize_t pos, Py_ssize_t end, Py_ssize_t *body)
{
    if (pos >= end)
        return -1;
    uint8_t lead = buf[pos];
    if (lead >> 4 == 0x9) {
        *body = pos + 1;
        return lead & 0x0F;
    }
    int width = lead == 0xDC || lead == 0xDD ? prefix_bytes(lead) : 0;
    if (width == 0 || width > end - pos - 1)
        return -1;
    *body = pos + 1 + width;
    return (Py_ssize_t)big_endian(buf + pos + 1, width);
}

/* What stands in the place of a tail, if the array has as many elements as are expected: borrowed. NULL if
 * it has not, and NULL with an exception for what does not have the form. */
static PyObject *
edit_of(PyObject *known, Py_ssize_t fields)
{
    PyObject *edit = PyTuple_Check(known) && PyTuple_GET_SIZE(known) == 2 ? PyTuple_GET_ITEM(known, 1) : NULL;
    int is_well_formed = edit == Py_None;
    if (edit != NULL && PyTuple_Check(edit) && PyTuple_GET_SIZE(edit) == 3) {
        PyObject *number = PyTuple_GET_ITEM(edit, 1);
        is_well_formed = PyBytes_Check(PyTuple_GET_ITEM(edit, 0)) && (number == Py_None || PyBytes_Check(number)) &&
                         PyBytes_Check(PyTuple_GET_ITEM(edit, 2));
    }
    if (!is_well_formed) {
        PyErr_SetString(PyExc_TypeError, "expected (fields, None) or (fields, (bytes, bytes or None, bytes))");
        return NULL;
    }
    Py_ssize_t expected = PyLong_AsSsize_t(PyTuple_GET_ITEM(known, 0));
    return expected == fields ? edit : NULL;
}

/* The shortest encoding of the CRC-32 of some bytes. */
static Py_ssize_t
pack_crc(uint8_t packed[5], const uint8_t *data, Py_ssize_t size)
{
    uint32_t crc = 0xFFFFFFFF;
    for (Py_ssize_t i = 0; i < size; i++)
        crc = crc >> 8 ^ CRC[(crc ^ data[i]) & 0xFF];
    crc = ~crc;
    int width = crc <= 0x7F ? 0 : crc <= 0xFF ? 1 : crc <= 0xFFFF ? 2 : 4;
    if (width == 0) {
        packed[0] = (uint8_t)crc;
        return 1;
    }
    packed[0] = width == 1 ? 0xCC : width == 2 ? 0xCD : 0xCE;
    for (int i = 0; i < width; i++)
        packed[1 + i] = (uint8_t)(crc >> 8 * (width - 1 - i));
    return 1 + width;
}

/* The first `end` bytes of a payload, and the three parts of an edit behind them. */
static PyObject *
replace_tail(PyObject *payload, Py_ssize_t end, PyObject *edit, const uint8_t *name, Py_ssize_t name_size)
{
    PyObject *before = PyTuple_GET_ITEM(edit, 0), *number = PyTuple_GET_ITEM(edit, 1);
    PyObject *behind = PyTuple_GET_ITEM(edit, 2);
    uint8_t packed[5];
    const char *middle = (const char *)packed;
    Py_ssize_t size;

    if (number == Py_None)
        size = pack_crc(packed, name, name_size);
    else
        middle = PyBytes_AS_STRING(number), size = PyBytes_GET_SIZE(number);
    PyObject *edited =
        PyBytes_FromStringAndSize(NULL, end + PyBytes_GET_SIZE(before) + size + PyBytes_GET_SIZE(behind));
    if (edited == NULL)
        return NULL;
    char *at = PyBytes_AS_STRING(edited);
    at = (char *)memcpy(at, PyBytes_AS_STRING(payload), (size_t)end) + end;
    at = (char *)memcpy(at, PyBytes_AS_STRING(before), (size_t)PyBytes_GET_SIZE(before)) + PyBytes_GET_SIZE(before);
    at = (char *)memcpy(at, middle, (size_t)size) + size;
    memcpy(at, PyBytes_AS_STRING(behind), (size_t)PyBytes_GET_SIZE(behind));
    return edited;
}

static PyObject *
scan_text(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 6 || !PyBytes_CheckExact(args[0]) || !PyBytes_CheckExact(args[1]) || !PyDict_CheckExact(args[2])) {
        PyErr_SetString(PyExc_TypeError, "expected bytes, bytes, a dict, a number and two bounds");
        return NULL;
    }
    int64_t limit, longest;
    Py_ssize_t max_tail = PyLong_AsSsize_t(args[3]);
    if (max_tail == -1 && PyErr_Occurred())
        return NULL;
    if (take_bound(args[4], &limit) < 0 || take_bound(args[5], &longest) < 0)
        return NULL;
    const uint8_t *buf = (const uint8_t *)PyBytes_AS_STRING(args[0]);
    Py_ssize_t end = PyBytes_GET_SIZE(args[0]), tag = PyBytes_GET_SIZE(args[1]), pos, body, name, size;

    Py_ssize_t fields = read_array_header(buf, 0, end, &pos);
    if (fields < 0 || end - pos < tag + 2 || memcmp(buf + pos, PyBytes_AS_STRING(args[1]), (size_t)tag) != 0)
        Py_RETURN_NONE;
    pos += tag;
    if (buf[pos] >> 5 == 5)
        name = pos + 1, size = buf[pos] & 0x1F;
    else if (buf[pos] == 0xD9)
        name = pos + 2, size = buf[pos + 1];
    else
        Py_RETURN_NONE;
    pos = name + size;
    if (end - pos < 3 || buf[pos] != 0xC0 || buf[pos + 1] != 0xC0)
        Py_RETURN_NONE;
    Py_ssize_t count = read_array_header(buf, pos + 2, end, &body);
    Range range;
    if (count < 1 || count > longest || (end - body - max_tail) / 9 > count) /* too much even for ids of 9 bytes */
        Py_RETURN_NONE;
    if (!measure(buf, body, end, count, &range) || end - range.after > max_tail)
        Py_RETURN_NONE;
    if (args[4] != Py_None && (range.least < 0 || range.most >= limit))
        Py_RETURN_NONE;

    PyObject *tail = PyBytes_FromStringAndSize((const char *)buf + range.after, end - range.after);
    if (tail == NULL)
        return NULL;
    PyObject *known = PyDict_GetItemWithError(args[2], tail);
    Py_DECREF(tail);
    if (known != NULL)
        known = edit_of(known, fields);
    if (known == NULL) {
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NONE;
    }
    PyObject *string = PyUnicode_DecodeUTF8((const char *)buf + name, size, NULL);
    if (string == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError))
            return NULL;
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    PyObject *edited = known == Py_None ? Py_NewRef(args[0]) : replace_tail(args[0], range.after, known, buf + name, size);
    PyObject *result = edited == NULL ? NULL : PyTuple_Pack(2, string, edited);
    Py_DECREF(string);
    Py_XDECREF(edited);
    return result;
}

static PyMethodDef methods[] = {
    {"bounds", _PyCFunction_CAST(scan_bounds), METH_FASTCALL, bounds_doc},
    {"holds", _PyCFunction_CAST(scan_holds), METH_FASTCALL, holds_doc},
    {"measure", _PyCFunction_CAST(scan_measure), METH_FASTCALL, measure_doc},
    {"skip", _PyCFunction_CAST(scan_skip), METH_FASTCALL, skip_doc},
    {"text", _PyCFunction_CAST(scan_text), METH_FASTCALL, text_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "sidecar.wire._scan", "The scans of sidecar.wire in C.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__scan(void)
{
    fill_tables();
    return PyModuleDef_Init(&definition);
}
