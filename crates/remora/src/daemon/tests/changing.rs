//! Lent memory that its owner changes while the card has it: it shrinks, grows, or gets holes. The
//! client's own requests fail, and nothing else does.

use std::fs::File;

use rustix::fs::FallocateFlags;

use super::crashes::local;
use super::*;

const LEN: u64 = 8192;

/// A client whose second queue pair's domain has a region of a file.
struct Lender {
    client: Client,
    one: Queues,
    lkey: u32,
    key: u32,
    file: File,
}

impl Lender {
    fn new(daemon: &Daemon, loan: Loan, file: File) -> Lender {
        let client = daemon.client();
        let (one, two) = (client.queues(), client.queues());
        client.connect(&one, &two.made);
        client.connect(&two, &one.made);
        let number = client.lend(loan, &file.try_clone().unwrap().into());
        let bytes = Bytes { place: Place::Lent { number, offset: 0 }, iova: 0, len: LEN };
        let key = client.card().reg_mr(two.pd, bytes, Access::all()).unwrap();
        let lkey = local(&client, &one);
        Lender { client, one, lkey, key, file }
    }

    /// A file of a file system.
    fn of_file(daemon: &Daemon) -> Lender {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("remora-changing-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file.set_len(LEN).unwrap();
        Lender::new(daemon, Loan::File, file)
    }

    /// Does this with the last page; returns how it ends.
    fn does(&mut self, opcode: u8) -> Status {
        let mut element = write(1, (0, self.lkey), (4096, self.key), 4096);
        element[0] = opcode;
        self.client.post(&mut self.one, &element);
        self.client.completion(&mut self.one).status
    }
}

const WRITE: u8 = 4;
const READ: u8 = 6;

fn punch(file: &File) {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, how, 0, LEN).unwrap();
}

#[test]
fn a_file_that_changes_fails_its_owners_requests_alone() {
    let daemon = Daemon::start();
    let mut other = Lender::of_file(&daemon);
    for opcode in [WRITE, READ] {
        for (len, works) in [(LEN, true), (LEN - 1, false), (4096, false), (0, false)] {
            let mut lender = Lender::of_file(&daemon);
            lender.file.set_len(len).unwrap();
            assert_eq!(lender.does(opcode) == Status::Success, works, "{opcode}: {len} bytes");
            assert_eq!(lender.file.metadata().unwrap().len(), len, "it is not made longer");
            assert_eq!(other.does(WRITE), Status::Success);
        }
        let mut lender = Lender::of_file(&daemon);
        lender.file.set_len(1 << 20).unwrap();
        assert_eq!(lender.does(opcode), Status::Success);
        punch(&lender.file);
        assert_eq!(lender.does(opcode), Status::Success);
        // Shorter, and then as long as before.
        lender.file.set_len(0).unwrap();
        lender.file.set_len(LEN).unwrap();
        assert_eq!(lender.does(opcode), Status::Success);
    }
    drop(other);
    daemon.wait_until_empty();
}

#[test]
fn sealed_memory_gets_holes_while_the_card_reaches_it() {
    let daemon = Daemon::start();
    let (file, _) = sealed(LEN as usize);
    let mut lender = Lender::new(&daemon, Loan::Sealed, file.into());
    for len in [0, LEN - 1, LEN + 1] {
        assert!(lender.file.set_len(len).is_err(), "its length is sealed");
    }
    let holes = lender.file.try_clone().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                punch(&holes);
            }
        });
        let ends: Vec<_> = (0..200).map(|n| lender.does([WRITE, READ][n % 2])).collect();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(ends, [Status::Success; 200]);
    });
    drop(lender);
    daemon.wait_until_empty();
}

#[test]
fn regions_that_overlap_have_each_their_own_rights() {
    let daemon = Daemon::start();
    let (file, memory) = sealed(LEN as usize);
    let lender = Lender::new(&daemon, Loan::Sealed, file.into());
    let client = &lender.client;
    let number = client.lend(Loan::Sealed, &lender.file.try_clone().unwrap().into());
    let attempt = |access: Access, (offset, len): (u64, u64), to: u64| {
        let (mut one, two) = (client.queues(), client.queues());
        client.connect(&one, &two.made);
        client.connect(&two, &one.made);
        let bytes = Bytes { place: Place::Lent { number, offset }, iova: offset, len };
        let key = client.card().reg_mr(two.pd, bytes, access).unwrap();
        let lkey = local(client, &one);
        client.post(&mut one, &write(1, (0, lkey), (to, key), 64));
        client.completion(&mut one).status == Status::Success
    };
    memory.write_at(0, &[1; LEN as usize]).unwrap();
    assert!(!attempt(Access::REMOTE_READ, (0, LEN), 4096), "it is for reading");
    assert!(attempt(Access::all(), (4000, 200), 4096));
    assert!(!attempt(Access::all(), (4000, 200), 4137), "beyond it, though within others");
    assert!(!attempt(Access::all(), (4000, 200), 3999), "before it");
    let mut bytes = [0; LEN as usize];
    memory.read_at(0, &mut bytes).unwrap();
    assert!(bytes[..4096] == [1; 4096] && bytes[4096..4160] == [0; 64]);
    assert!(bytes[4160..] == [1; LEN as usize - 4160]);
    drop(lender);
    daemon.wait_until_empty();
}
