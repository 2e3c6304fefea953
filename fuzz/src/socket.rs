//! Clients of a daemon that ask for anything over its socket, with any descriptors.

use std::collections::BTreeMap;

use remora::message::{
    ClientRequest, Code, DmaRequest, Hello, Keep, KernelRequest, Loan, Object, OpenXrcd, encode,
    greeting,
};

use crate::Seed;

/// Each step is what a client does (u8), which descriptors go with it (u8), a length (u8), and so
/// many bytes; the daemon answers each.
pub fn socket(data: &[u8]) {
    socket_answers(data);
}

/// Runs [`socket`], and returns how often the daemon has given each answer.
pub fn socket_answers(data: &[u8]) -> BTreeMap<&'static str, u64> {
    remora::daemon::hostile_socket(data)
}

/// What a client does, on the first of four connections.
const CLOSE: u8 = 0;
const GREET: u8 = 1;
const HELLO: u8 = 2;
const TAKE_OVER: u8 = 3;
const JOIN: u8 = 4;
const REQUEST: u8 = 5;
const COMMAND: u8 = 6;
/// The last connection, whose next one is the first.
const LAST: u8 = 3 << 6;
/// Descriptors: of sealed memory, of a file, and of what cannot be lent.
const SEALED: u8 = 1;
const FILE: u8 = 2;
const PIPE: u8 = 4;
const FOLDER: u8 = 16;
/// The handle of the first object of its kind: that of its place, in its first use. (As a command's
/// argument it is 0x80, 0x80, 0x40.)
const FIRST: u32 = 1 << 20;

/// A step.
fn step(what: u8, with: u8, bytes: &[u8]) -> Vec<u8> {
    [&[what, with, bytes.len() as u8], bytes].concat()
}

fn request(with: u8, request: &ClientRequest<'_>) -> Vec<u8> {
    step(REQUEST, with, &encode(request))
}

fn dma(with: u8, of_engine: DmaRequest) -> Vec<u8> {
    request(with, &ClientRequest::Dma(of_engine))
}

/// A greeting, without the mark and the version.
fn hello(hello: &Hello) -> Vec<u8> {
    step(HELLO, 0, &greeting(hello)[6..])
}

/// Inputs that reach each request, with descriptors of the right kinds and of others.
pub fn sockets() -> Vec<Seed> {
    let card = card_memory(&hello(&observer()));
    let others = [seed("kernels", &kernels()), seed("card-memory", &card)];
    [greetings(), loans(), objects()].into_iter().flatten().chain(others).collect()
}

fn seed(name: &str, steps: &[Vec<u8>]) -> Seed {
    Seed { name: name.to_owned(), data: steps.concat() }
}

fn greet() -> Vec<u8> {
    step(GREET, 0, &[])
}

fn observer() -> Hello {
    Hello { observer: true, ..Hello::default() }
}

fn command(bytes: &[u8]) -> Vec<u8> {
    step(COMMAND, 0, bytes)
}

/// Sessions that begin, are taken over and joined, and those who only ask.
fn greetings() -> Vec<Seed> {
    let kept = Hello { name: Some("kept".into()), keep: Keep::Forever, ..Hello::default() };
    let first_goes = [step(CLOSE, 0, &[]), step(LAST | COMMAND, 0, &[0])].concat();
    vec![
        seed("greets-twice", &[greet(), greet(), greet()]),
        seed("observes", &[hello(&observer()), request(0, &ClientRequest::Status(0))]),
        seed("of-another-version", &[step(REQUEST, 0, b"RMRA\xff\xff")]),
        seed("takes-over", &[hello(&kept), step(LAST | TAKE_OVER, 0, &[1]), command(&[0])]),
        seed("joins", &[greet(), step(LAST | JOIN, 0, &[]), first_goes]),
        seed(
            "asks",
            &[
                greet(),
                request(0, &ClientRequest::Passes),
                request(0, &ClientRequest::DmaClients(0)),
                request(0, &ClientRequest::Impair("loss=1%")),
                request(0, &ClientRequest::Keep(Keep::Seconds(9))),
                request(0, &ClientRequest::Evict("%1")),
            ],
        ),
    ]
}

/// Memory and files.
fn loans() -> Vec<Seed> {
    let lend = |with, loan| request(with, &ClientRequest::Lend(loan));
    let take_back = |number| request(0, &ClientRequest::TakeBack(number));
    let gates = |with| request(with, &ClientRequest::Gates);
    let xrcd = |with, creates, exclusive| {
        request(with, &ClientRequest::OpenXrcd(OpenXrcd { creates, exclusive }))
    };
    let sealed = || lend(SEALED, Loan::Sealed);
    // Of 4096 bytes of the first loan, in the first domain.
    let region = command(&[30, 0x80, 0x80, 0x40, 5, 1, 0, 0, 0x80, 0x20, 15]);
    vec![
        seed("lends", &[greet(), sealed(), lend(FILE, Loan::File), take_back(1), take_back(9)]),
        seed(
            "lends-wrong-kinds",
            &[
                greet(),
                lend(FILE, Loan::Sealed),
                lend(FOLDER, Loan::File),
                lend(PIPE, Loan::ProcessFile),
                lend(SEALED | FILE, Loan::Sealed),
            ],
        ),
        seed("registers", &[greet(), sealed(), command(&[0]), region, take_back(1)]),
        seed("gates", &[greet(), gates(SEALED), gates(FILE)]),
        seed("xrc", &[greet(), xrcd(FILE, true, false), xrcd(PIPE, true, true)]),
    ]
}

/// Domains, completion queues, device memory; what is asked of them.
fn objects() -> Vec<Seed> {
    let queue = command(&[2, 16]);
    vec![
        seed(
            "commands",
            &[
                greet(),
                command(&[0]),
                queue.clone(),
                request(0, &ClientRequest::CompletionQueue(FIRST)),
                request(0, &ClientRequest::Counted { cq: FIRST, count: 3 }),
                command(&[23]),
                command(&[36, 64]),
            ],
        ),
        seed(
            "asks-of-objects",
            &[
                greet(),
                queue,
                request(0, &ClientRequest::Objects(Object::Cq(0))),
                request(0, &ClientRequest::Describe(Object::Qp(7))),
                request(0, &ClientRequest::Regions(1, 0)),
                request(0, &ClientRequest::Pass { qpn: 7, key: 1 }),
            ],
        ),
    ]
}

/// A built-in kernel, one that is no module, and their ends.
fn kernels() -> Vec<Vec<u8>> {
    let deploy = |opcode, code| KernelRequest::Deploy {
        opcode,
        replace: false,
        name: "k".into(),
        budget: 9,
        grants: Vec::new(),
        code,
    };
    let module = Code::Module { memory: 65_536, table: 1, instances: 1 };
    let of_kernels = |with, of_kernels| request(with, &ClientRequest::Kernel(of_kernels));
    vec![
        greet(),
        of_kernels(0, deploy(7, Code::Builtin("traversal".into()))),
        of_kernels(SEALED, deploy(8, module)),
        of_kernels(0, KernelRequest::List(0)),
        of_kernels(0, KernelRequest::Undeploy(7)),
        of_kernels(0, KernelRequest::Tap(1)),
    ]
}

/// What a client asks of the engine, and each of its ends.
fn card_memory(greet: &[u8]) -> Vec<Vec<u8>> {
    let grant = |loan| DmaRequest::Grant { loan, addr: 0, len: 4096, writable: true };
    let channel =
        |stream, interrupt, depth| DmaRequest::Channel { to_host: true, stream, interrupt, depth };
    vec![
        greet.to_vec(),
        dma(0, DmaRequest::Open),
        dma(SEALED, grant(Loan::Sealed)),
        dma(FILE, grant(Loan::File)),
        dma(PIPE, grant(Loan::Sealed)),
        dma(0, channel(None, true, 8)),
        dma(0, channel(Some(3), false, 7)),
        dma(0, DmaRequest::Alloc { near: true, len: 4096 }),
        dma(0, DmaRequest::Free(0)),
        dma(0, DmaRequest::List(0)),
        dma(0, DmaRequest::Close(0)),
        dma(0, DmaRequest::Revoke(0)),
    ]
}
