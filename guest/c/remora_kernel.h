/* Kernels for Remora's card, written in C and loaded as WebAssembly.
 *
 * A kernel is a function that REMORA_KERNEL exports. It runs on the card of the node that it was
 * loaded into, once for each call, and reaches what is declared here: the call and its payload,
 * registered memory that it was granted, and the way back to the requester. Nothing here blocks
 * the card: whoever has to wait is suspended.
 *
 *     clang --target=wasm32 -mcpu=mvp -O2 -ffreestanding -nostdlib \
 *         -Wl,--no-entry -Wl,-z,stack-size=16384 -Wl,--strip-all -o lines.wasm lines.c
 *     remora kernel load NODE lines.wasm --opcode 0x100
 *
 * (-mcpu=mvp: the card does not offer bulk memory.)
 *
 * Globals and memory of a module may be as the last call by the same queue pair left them, or as
 * they were in the beginning. What is to last belongs into registered memory.
 */
#ifndef REMORA_KERNEL_H
#define REMORA_KERNEL_H

#include <stdint.h>

/* Why a kernel ends without success: the code that its requester reads. Those from 128 on are for
 * kernels' own use. */
enum remora_status {
    REMORA_OK = 0,
    REMORA_BAD_PARAMS = 2,   /* the parameters are malformed */
    REMORA_NOT_FOUND = 3,    /* what was looked for is not there */
    REMORA_TOO_LONG = 4,     /* the result does not fit the requester's buffer */
    REMORA_ACCESS = 5,       /* memory that was not granted, or cannot be reached */
    REMORA_BUDGET = 6,       /* more work than an invocation may do */
    REMORA_INCONSISTENT = 7, /* the object was inconsistent at every re-read */
    REMORA_TRAP = 8,         /* the kernel itself failed */
    REMORA_MEMORY = 9,       /* more memory than the kernel may have */
};

/* A call. */
struct remora_call {
    uint32_t qpn;        /* the queue pair that it came by */
    uint32_t max_len;    /* how many bytes of results the requester takes */
    uint64_t opcode;     /* the op-code it was called by */
    uint64_t cookie;     /* the requester's cookie */
    uint32_t params_len; /* bytes of parameters */
    uint32_t reserved;
};

_Static_assert(sizeof(struct remora_call) == 32, "the card writes 32 bytes");

/* The kernel: a function without parameters that returns a status. */
#define REMORA_KERNEL __attribute__((export_name("kernel"))) uint32_t kernel(void)

#define REMORA_IMPORT(name) __attribute__((import_module("remora"), import_name(#name)))

/* Functions return a status, unless it says otherwise. */

/* The call that this kernel answers. */
REMORA_IMPORT(call) uint32_t remora_call(struct remora_call *into);

/* Copies the beginning of the parameters, at most `len` bytes. Returns the length of all of
 * them. */
REMORA_IMPORT(params) int32_t remora_params(void *into, uint32_t len);

/* Waits for payload, and copies what is there, at most `len` bytes. Returns how many: 0 at the
 * end, below 0 the negative of a status. */
REMORA_IMPORT(payload) int32_t remora_payload(void *into, uint32_t len);

/* Read and write registered memory, a megabyte at a time. */
REMORA_IMPORT(read) uint32_t remora_read(uint64_t addr, void *into, uint32_t len);
REMORA_IMPORT(write) uint32_t remora_write(uint64_t addr, const void *from, uint32_t len);

/* Appends registered memory to the results, as it is now. */
REMORA_IMPORT(fetch) uint32_t remora_fetch(uint64_t addr, uint32_t len);

/* Appends registered memory to the results without a copy: as it is when it leaves. */
REMORA_IMPORT(send_memory) uint32_t remora_send_memory(uint64_t addr, uint32_t len);

/* Appends bytes to the results. */
REMORA_IMPORT(output) uint32_t remora_output(const void *from, uint32_t len);

/* Writes bytes into a peer's memory, by a queue pair of the same protection domain. */
REMORA_IMPORT(send_to)
uint32_t remora_send_to(uint32_t qpn, uint32_t rkey, uint64_t addr, const void *from,
                        uint32_t len);

/* Waits until all that remora_send_to has sent is acknowledged. */
REMORA_IMPORT(sent) uint32_t remora_sent(void);

/* Lets others go first. */
REMORA_IMPORT(yield_now) uint32_t remora_yield_now(void);

/* Writes the `index`th region that was granted, from 0 on. */
struct remora_granted {
    uint64_t addr;     /* its first address */
    uint64_t len;      /* its bytes */
    uint64_t writable; /* not 0 if it may be written */
};
REMORA_IMPORT(granted) uint32_t remora_granted(uint32_t index, struct remora_granted *into);

/* A tap: what the card calls for each payload of the WRITEs that the module is bound to, as it
 * passes. It takes the payload by remora_payload, reads and writes what it was granted, and puts
 * out, by remora_output, what is to be written instead; nothing else is offered to it. It returns a
 * verdict, or the negative of a status. A tap that fails is stopped: WRITEs go on without it.
 *
 * One instance sees all of the stream, and keeps its globals as long as it is bound. Calls of the
 * module's kernel do not see them: what they are to find belongs into granted memory. */
#define REMORA_TAP __attribute__((export_name("tap"))) int32_t tap(void)

enum remora_verdict {
    REMORA_PASS = 0,    /* it is written where it was to go */
    REMORA_REPLACE = 1, /* what was put out is written there instead; it may be shorter */
    REMORA_TAKE = 2,    /* it is written nowhere */
};

/* A payload that passes: in a tap only. */
struct remora_passing {
    uint64_t addr;   /* where it is to go, as the WRITE says it */
    uint32_t qpn;    /* the queue pair that it came by */
    uint32_t len;    /* its bytes: a packet's, as a rule */
    uint32_t offset; /* bytes of the message before it */
    uint32_t total;  /* bytes of the whole message */
    uint32_t again;  /* not 0 if it was sent before (where it is sent, only) */
    uint32_t reserved;
};

_Static_assert(sizeof(struct remora_passing) == 32, "the card writes 32 bytes");

REMORA_IMPORT(passing) uint32_t remora_passing(struct remora_passing *into);

#endif
