/* The keys of sidecar.admission.recent_keys in C: two generations, each spread over many hash tables.
 *
 * Its twin in Python keeps strings in dicts. One look into a dict of a million strings waits for memory three
 * times: for the index, for the entry, and for the string of the entry that is in the way. Here a slot has all
 * that a look needs, and `add_each` asks for the slots of many keys before it looks at the first.
 *
 * What is kept of a key is 128 bits of SipHash-2-4 under a secret: two keys that a sender can find are told
 * apart as surely as by their bytes (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012).
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

/* How many tables a generation is spread over, because a large one takes long to grow. */
#define TABLES 256
#define FIRST_SLOTS 8

/* Keys whose slots are asked for together. */
#define AHEAD 64

typedef struct {
    uint64_t low, high; /* both 0 in a slot that is free */
} Digest;

typedef struct {
    Digest digest;
    double at;
} Slot;

/* Open addressing with linear probing; `size` is 0 or a power of two. */
typedef struct {
    Slot *slots;
    size_t size, used;
} Table;

typedef struct {
    Table tables[TABLES];
    Py_ssize_t used;
} Generation;

/* A generation whose tables are freed a few at a time, from the end. */
typedef struct Fading {
    struct Fading *next;
    Generation generation;
    int left; /* tables that are not freed */
} Fading;

typedef struct {
    PyObject_HEAD
    double window, since;
    Py_ssize_t capacity;
    uint64_t secret[2];
    Generation young, old;
    Fading *fading;
} RecentKeys;

/* SipHash-2-4 with an output of 128 bits. */

#define ROTATE(x, bits) ((x) << (bits) | (x) >> (64 - (bits)))

static inline void
sip_rounds(uint64_t v[4], int rounds)
{
    while (rounds--) {
        v[0] += v[1], v[1] = ROTATE(v[1], 13) ^ v[0], v[0] = ROTATE(v[0], 32);
        v[2] += v[3], v[3] = ROTATE(v[3], 16) ^ v[2];
        v[0] += v[3], v[3] = ROTATE(v[3], 21) ^ v[0];
        v[2] += v[1], v[1] = ROTATE(v[1], 17) ^ v[2], v[2] = ROTATE(v[2], 32);
    }
}

static inline uint64_t
little_endian(const uint8_t *at, size_t width)
{
    uint64_t value = 0;
    for (size_t i = 0; i < width; i++)
        value |= (uint64_t)at[i] << 8 * i;
    return value;
}

static Digest
siphash(const uint64_t secret[2], const uint8_t *data, size_t size)
{
    uint64_t v[4] = {
        secret[0] ^ 0x736f6d6570736575, secret[1] ^ 0x646f72616e646f6d ^ 0xEE,
        secret[0] ^ 0x6c7967656e657261, secret[1] ^ 0x7465646279746573,
    };
    size_t whole = size & ~(size_t)7;
    for (size_t i = 0; i <= whole; i += 8) {
        uint64_t word = i < whole ? little_endian(data + i, 8) : little_endian(data + i, size & 7) | size << 56;
        v[3] ^= word;
        sip_rounds(v, 2);
        v[0] ^= word;
    }
    Digest digest;
    v[2] ^= 0xEE;
    sip_rounds(v, 4);
    digest.low = v[0] ^ v[1] ^ v[2] ^ v[3];
    v[1] ^= 0xDD;
    sip_rounds(v, 4);
    digest.high = v[0] ^ v[1] ^ v[2] ^ v[3];
    return digest;
}

static int
take_secret(uint64_t words[2], const char *secret, Py_ssize_t size)
{
    if (size != 16) {
        PyErr_Format(PyExc_ValueError, "a secret has 16 bytes, not %zd", size);
        return 0;
    }
    words[0] = little_endian((const uint8_t *)secret, 8);
    words[1] = little_endian((const uint8_t *)secret + 8, 8);
    return 1;
}

/* The digest of a string; false, with an exception, if it is none. Equal strings have equal representations. */
static int
digest_of(const RecentKeys *self, PyObject *key, Digest *digest)
{
    if (!PyUnicode_Check(key)) {
        PyErr_Format(PyExc_TypeError, "a key must be a str, not %.100s", Py_TYPE(key)->tp_name);
        return 0;
    }
    size_t size = (size_t)PyUnicode_GET_LENGTH(key) * (size_t)PyUnicode_KIND(key);
    *digest = siphash(self->secret, PyUnicode_DATA(key), size);
    if (digest->low == 0 && digest->high == 0)
        digest->high = 1;
    return 1;
}

/* Tables */

static inline Table *
table_of(Generation *generation, Digest digest)
{
    return &generation->tables[digest.high % TABLES];
}

/* The slot that has a digest, or the free one where it would go; NULL in a table without any. */
static Slot *
find(const Table *table, Digest digest)
{
    if (table->size == 0)
        return NULL;
    size_t mask = table->size - 1;
    for (size_t i = digest.low & mask;; i = (i + 1) & mask) {
        Slot *slot = &table->slots[i];
        int is_free = slot->digest.low == 0 && slot->digest.high == 0;
        if (is_free || (slot->digest.low == digest.low && slot->digest.high == digest.high))
            return slot;
    }
}

static inline int
is_used(const Slot *slot)
{
    return slot != NULL && (slot->digest.low != 0 || slot->digest.high != 0);
}

/* Make room for one more. False, and nothing, if there is no memory.
 *
 * All tables of a generation have nearly as many keys, so each grows when it is fuller than the one before
 * it, from 3/8 to 5/8: they would else all do so within a few thousand keys. */
static int
reserve(Generation *generation, Table *table)
{
    size_t index = (size_t)(table - generation->tables);
    if (8 * TABLES * (table->used + 1) <= (3 * TABLES + 2 * index) * table->size)
        return 1;
    Table larger = {NULL, table->size ? 2 * table->size : FIRST_SLOTS, table->used};
    larger.slots = PyMem_RawCalloc(larger.size, sizeof(Slot));
    if (larger.slots == NULL)
        return 0;
    for (size_t i = 0; i < table->size; i++)
        if (is_used(&table->slots[i]))
            *find(&larger, table->slots[i].digest) = table->slots[i];
    PyMem_RawFree(table->slots);
    *table = larger;
    return 1;
}

static void
empty(Table *table)
{
    PyMem_RawFree(table->slots);
    *table = (Table){NULL, 0, 0};
}

/* Those behind a slot that is freed move up, so that none is looked for where it cannot be found. */
static void
erase(Generation *generation, Digest digest)
{
    Table *table = table_of(generation, digest);
    Slot *slot = find(table, digest);
    if (!is_used(slot))
        return;
    size_t mask = table->size - 1, gap = (size_t)(slot - table->slots);
    for (size_t i = (gap + 1) & mask; is_used(&table->slots[i]); i = (i + 1) & mask) {
        size_t home = table->slots[i].digest.low & mask;
        if (((i - home) & mask) >= ((i - gap) & mask)) {
            table->slots[gap] = table->slots[i];
            gap = i;
        }
    }
    memset(&table->slots[gap], 0, sizeof(Slot));
    table->used--;
    generation->used--;
}

/* Generations */

static void
empty_all(Generation *generation)
{
    for (int i = 0; i < TABLES; i++)
        empty(&generation->tables[i]);
    generation->used = 0;
}

/* Free two tables that have slots: a key that is added makes one at most, so they do not pile up. */
static void
fade(RecentKeys *self)
{
    int freed = 0;
    while (self->fading != NULL) {
        Fading *fading = self->fading;
        while (fading->left) {
            Table *table = &fading->generation.tables[fading->left - 1];
            if (table->size && freed++ == 2)
                return;
            empty(table);
            fading->left--;
        }
        self->fading = fading->next;
        PyMem_RawFree(fading);
    }
}

/* The young generation becomes the old one, and the old one fades. */
static void
turn(RecentKeys *self, double now)
{
    Fading *fading = self->old.used ? PyMem_RawMalloc(sizeof *fading) : NULL;
    if (fading != NULL) {
        *fading = (Fading){self->fading, self->old, TABLES};
        self->fading = fading;
    } else
        empty_all(&self->old);
    self->old = self->young;
    memset(&self->young, 0, sizeof self->young);
    self->since = now;
}

static int
is_within(const RecentKeys *self, const Slot *slot, double now)
{
    return is_used(slot) && now - slot->at < self->window;
}

/* 1 if it was remembered, 0 if it is there already, -1 with an exception. */
static int
add(RecentKeys *self, Digest digest, double now)
{
    if (now - self->since >= self->window || self->young.used >= self->capacity - self->young.used)
        turn(self, now);
    if (self->old.used && is_within(self, find(table_of(&self->old, digest), digest), now))
        return 0;
    Table *table = table_of(&self->young, digest);
    if (!reserve(&self->young, table)) {
        PyErr_NoMemory();
        return -1;
    }
    Slot *slot = find(table, digest);
    if (is_used(slot))
        return 0;
    *slot = (Slot){digest, now};
    table->used++;
    self->young.used++;
    fade(self);
    return 1;
}

static inline void
prefetch(Generation *generation, Digest digest)
{
#ifdef __GNUC__
    Table *table = table_of(generation, digest);
    if (table->size)
        __builtin_prefetch(&table->slots[digest.low & (table->size - 1)], 1);
#endif
}

/* The type */

static PyObject *
keys_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    double window;
    Py_ssize_t capacity, size;
    const char *secret;
    if (kwargs != NULL && PyDict_GET_SIZE(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "expected no arguments by name");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "dny#", &window, &capacity, &secret, &size))
        return NULL;
    uint64_t words[2];
    if (!take_secret(words, secret, size))
        return NULL;
    RecentKeys *self = (RecentKeys *)type->tp_alloc(type, 0); /* all zero */
    if (self == NULL)
        return NULL;
    self->window = window;
    self->capacity = capacity;
    self->since = -INFINITY;
    memcpy(self->secret, words, sizeof words);
    return (PyObject *)self;
}

static void
keys_dealloc(RecentKeys *self)
{
    PyTypeObject *type = Py_TYPE(self);
    empty_all(&self->young);
    empty_all(&self->old);
    while (self->fading != NULL)
        fade(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static Py_ssize_t
keys_length(RecentKeys *self)
{
    return self->young.used + self->old.used;
}

/* The two arguments of most methods: a key and a time. */
static int
take_arguments(RecentKeys *self, PyObject *const *args, Py_ssize_t nargs, Digest *digest, double *now)
{
    if (nargs != 2) {
        PyErr_Format(PyExc_TypeError, "expected a key and a time, got %zd arguments", nargs);
        return 0;
    }
    *now = PyFloat_AsDouble(args[1]);
    return !(*now == -1.0 && PyErr_Occurred()) && digest_of(self, args[0], digest);
}

PyDoc_STRVAR(holds_doc, "holds(key, now)\n--\n\nWhether a key was added within the window.");

static PyObject *
keys_holds(RecentKeys *self, PyObject *const *args, Py_ssize_t nargs)
{
    Digest digest;
    double now;
    if (!take_arguments(self, args, nargs, &digest, &now))
        return NULL;
    const Slot *young = find(table_of(&self->young, digest), digest);
    const Slot *slot = is_used(young) ? young : find(table_of(&self->old, digest), digest);
    return PyBool_FromLong(is_within(self, slot, now));
}

PyDoc_STRVAR(add_doc,
"add(key, now)\n--\n\n"
"Remember a key from now on; False, and nothing, if it was added within the window.");

static PyObject *
keys_add(RecentKeys *self, PyObject *const *args, Py_ssize_t nargs)
{
    Digest digest;
    double now;
    if (!take_arguments(self, args, nargs, &digest, &now))
        return NULL;
    int added = add(self, digest, now);
    return added < 0 ? NULL : PyBool_FromLong(added);
}

PyDoc_STRVAR(add_each_doc,
"add_each(keys, now)\n--\n\n"
"`add` for the keys of a list or tuple in their order, up to the first that was added within the window: how many come before it.");

static PyObject *
keys_add_each(RecentKeys *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !(PyList_CheckExact(args[0]) || PyTuple_CheckExact(args[0]))) {
        PyErr_SetString(PyExc_TypeError, "expected a list or tuple of keys, and a time");
        return NULL;
    }
    double now = PyFloat_AsDouble(args[1]);
    if (now == -1.0 && PyErr_Occurred())
        return NULL;
    Digest digests[AHEAD];
    PyObject *keys = args[0];
    Py_ssize_t count = PySequence_Fast_GET_SIZE(keys);
    for (Py_ssize_t first = 0; first < count; first += AHEAD) {
        Py_ssize_t some = count - first < AHEAD ? count - first : AHEAD;
        for (Py_ssize_t i = 0; i < some; i++) {
            if (!digest_of(self, PySequence_Fast_GET_ITEM(keys, first + i), &digests[i]))
                return NULL;
            prefetch(&self->young, digests[i]);
            prefetch(&self->old, digests[i]);
        }
        for (Py_ssize_t i = 0; i < some; i++) {
            int added = add(self, digests[i], now);
            if (added < 0)
                return NULL;
            if (added == 0)
                return PyLong_FromSsize_t(first + i);
        }
    }
    return PyLong_FromSsize_t(count);
}

PyDoc_STRVAR(discard_doc, "discard(key)\n--\n\nForget a key.");

static PyObject *
keys_discard(RecentKeys *self, PyObject *key)
{
    Digest digest;
    if (!digest_of(self, key, &digest))
        return NULL;
    erase(&self->young, digest);
    erase(&self->old, digest);
    Py_RETURN_NONE;
}

static size_t
slots_of(const Generation *generation)
{
    size_t slots = 0;
    for (int i = 0; i < TABLES; i++)
        slots += generation->tables[i].size;
    return slots;
}

PyDoc_STRVAR(size_doc, "__sizeof__()\n--\n\nThe bytes of all tables, those that fade among them.");

static PyObject *
keys_sizeof(RecentKeys *self, PyObject *Py_UNUSED(ignored))
{
    size_t size = sizeof *self + (slots_of(&self->young) + slots_of(&self->old)) * sizeof(Slot);
    for (const Fading *fading = self->fading; fading != NULL; fading = fading->next)
        size += sizeof *fading + slots_of(&fading->generation) * sizeof(Slot);
    return PyLong_FromSize_t(size);
}

static PyMethodDef methods[] = {
    {"add", _PyCFunction_CAST(keys_add), METH_FASTCALL, add_doc},
    {"add_each", _PyCFunction_CAST(keys_add_each), METH_FASTCALL, add_each_doc},
    {"discard", _PyCFunction_CAST(keys_discard), METH_O, discard_doc},
    {"holds", _PyCFunction_CAST(keys_holds), METH_FASTCALL, holds_doc},
    {"__sizeof__", _PyCFunction_CAST(keys_sizeof), METH_NOARGS, size_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(type_doc,
"RecentKeys(window, capacity, secret)\n--\n\n"
"Strings that are forgotten after `window` seconds, or earlier if there are more than `capacity`.\n"
"`secret` is 16 random bytes.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)type_doc},
    {Py_tp_new, keys_new},
    {Py_tp_dealloc, keys_dealloc},
    {Py_tp_methods, methods},
    {Py_sq_length, keys_length},
    {0, NULL},
};

static PyType_Spec spec = {
    "sidecar.admission._recent_keys.RecentKeys", sizeof(RecentKeys), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots,
};

static int
execute(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    int result = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return result;
}

PyDoc_STRVAR(siphash_doc,
"siphash(secret, data)\n--\n\n"
"SipHash-2-4 of some bytes under a secret of 16: 16 bytes. Keys are hashed with it; here it can be tested.");

static PyObject *
module_siphash(PyObject *module, PyObject *args)
{
    const char *secret, *data;
    Py_ssize_t secret_size, size;
    uint64_t words[2];
    if (!PyArg_ParseTuple(args, "y#y#", &secret, &secret_size, &data, &size) || !take_secret(words, secret, secret_size))
        return NULL;
    Digest digest = siphash(words, (const uint8_t *)data, (size_t)size);
    uint8_t bytes[16];
    for (int i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)(digest.low >> 8 * i);
        bytes[8 + i] = (uint8_t)(digest.high >> 8 * i);
    }
    return PyBytes_FromStringAndSize((const char *)bytes, sizeof bytes);
}

static PyMethodDef functions[] = {
    {"siphash", module_siphash, METH_VARARGS, siphash_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, execute},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "sidecar.admission._recent_keys", "Keys that are remembered for a time.", 0, functions,
    module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__recent_keys(void)
{
    return PyModuleDef_Init(&definition);
}
