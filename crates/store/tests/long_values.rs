//! Long values: nobody waits for them.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use remora_store::codec::Codec;
use remora_store::journal::Unlogged;
use remora_store::memory::{Heap, Watch, Watched};
use remora_store::store::{Change, Expiry, Old, Options, Store, Value};
use remora_store::tablespace::TablespaceOptions;

/// How long anything may take here.
const LIMIT: Duration = Duration::from_secs(60);
const LEN: usize = 2 << 20;

/// Before a long piece is written to memory, it waits until somebody else has done something.
struct Attention {
    begin: Sender<()>,
    done: Mutex<Receiver<()>>,
}

impl Watch for Attention {
    fn before_write(&self, _: u64, len: usize) {
        if len >= LEN / 2 {
            self.begin.send(()).unwrap();
            let done = self.done.lock().unwrap().recv_timeout(LIMIT);
            assert!(done.is_ok(), "others wait while a long value is written");
        }
    }
}

/// Bytes that no codec makes shorter.
fn noise(mut state: u64) -> Vec<u8> {
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..LEN).map(|_| next()).collect()
}

#[test]
fn others_change_their_keys_while_a_long_value_is_written() {
    let options = Options::new(64 << 20, 3);
    let (begin, begun) = channel();
    let (say, said) = channel();
    let attention = Attention { begin, done: Mutex::new(said) };
    let memory = Watched::new(options.memory_len(), attention);
    let store = Store::new(memory, Unlogged::default(), options).unwrap();
    let plain = store.create_tablespace(&TablespaceOptions::new("plain")).unwrap();
    let codec = Codec::Lz4 { head: 0 };
    let packed = TablespaceOptions { codec, ..TablespaceOptions::new("packed") };
    let packed = store.create_tablespace(&packed).unwrap();
    thread::scope(|scope| {
        let (store, mut rounds) = (&store, 3);
        scope.spawn(move || {
            while rounds > 0 && begun.recv_timeout(2 * LIMIT).is_ok() {
                // In all partitions, so that it is the long value's, too.
                for n in 0..4096u32 {
                    store.put(plain, &n.to_le_bytes(), b"short", 0, None, 1).unwrap();
                }
                say.send(()).unwrap();
                rounds -= 1;
            }
        });
        for (space, seed) in [(plain, 1), (plain, 2), (packed, 3)] {
            let long = noise(seed);
            store.put(space, b"long", &long, 5, None, 1).unwrap();
            let mut value = Vec::new();
            let found = store.get(space, b"long", 1, &mut value).unwrap();
            assert!(value == long && found.flags == 5);
        }
    });
}

#[test]
fn a_block_that_was_written_for_nothing_is_free_again() {
    let options = Options::new(64 << 20, 3);
    let heap = Heap::new(options.memory_len());
    let store = Store::new(heap, Unlogged::default(), options).unwrap();
    let space = store.create_tablespace(&TablespaceOptions::new("a")).unwrap();
    let (long, other) = (noise(1), noise(2));
    let put = |value| Change::Put { value: Value::Given(value), flags: 0, expiry: Expiry::Default };
    let bytes = |store: &Store<Heap>| store.tablespaces()[0].bytes;
    for (then, left) in [(Change::Keep, None), (put(b"short"), Some(5)), (put(&other), Some(LEN))] {
        let mut asked = 0;
        let decide = &mut |_: Option<&Old<'_>>, _: &mut Vec<u8>| {
            asked += 1;
            if asked == 1 { put(&long) } else { then }
        };
        store.update(space, b"key", 1, decide).unwrap();
        assert_eq!(asked, 2);
        let mut value = Vec::new();
        let found = store.get(space, b"key", 1, &mut value);
        assert_eq!(found.map(|_| value.len()), left);
        store.delete(space, b"key", 1).unwrap();
        (0..16).for_each(|_| _ = store.sweep(2, 4096));
        assert_eq!(bytes(&store), 0, "{left:?}");
    }
}
