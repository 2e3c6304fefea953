//! A store that the targets of the fronts serve: small, and empty before each input.

use std::sync::Arc;

use remora_store::front::keyspace::{Forgetful, Keeper};
use remora_store::front::served::Served;
use remora_store::front::server_state::{Next, ServerState, Step, Turn};
use remora_store::journal::Unlogged;
use remora_store::memory::Heap;
use remora_store::store::{Options, Store};
use remora_store::tablespace::TablespaceOptions;

/// The store's limit, in bytes.
const LIMIT: u64 = 8 << 20;
/// The time of all inputs, in ms of Unix time.
const NOW: u64 = 1_700_000_000_000;

thread_local! {
    static TURN: std::cell::RefCell<Turn> = std::cell::RefCell::new(turn(Arc::new(Forgetful)));
}

/// The turns of a server of an empty store, of which `keeper` keeps what is kept.
pub(crate) fn turn(keeper: Arc<dyn Keeper>) -> Turn {
    let options = Options { traced: Some("db0"), ..Options::new(LIMIT, 3) };
    let store = Store::new(Heap::new(options.memory_len()), Unlogged::default(), options);
    let store = Arc::new(store.expect("the heap is as long as it must be"));
    let keyspace = Arc::new(Served::new(store, LIMIT, TablespaceOptions::default()));
    Turn::new(Arc::new(ServerState::new(keyspace, keeper, 1, true)))
}

/// Runs `body` with an empty store.
pub(crate) fn with_turn(body: impl FnOnce(&mut Turn)) {
    TURN.with_borrow_mut(|turn| {
        empty(turn);
        body(turn);
    });
}

/// Empties the store, and sets the server as it was at first.
pub(crate) fn empty(turn: &mut Turn) {
    turn.now = NOW;
    turn.server.settings.set_password(None);
    for index in 0..16 {
        if let Ok(space) = turn.server.keyspace.tablespace(&format!("db{index}")) {
            turn.server.keyspace.flush(space, NOW).expect("nothing refuses");
        }
    }
}

/// Feeds `input` in pieces of `piece` bytes, as a connection would. The answer is all replies.
///
/// # Panics
/// If a session takes bytes that are not there, or waits for bytes it has.
pub(crate) fn feed(
    input: &[u8],
    piece: usize,
    mut run: impl FnMut(&[u8], &mut Vec<u8>) -> Step,
) -> Vec<u8> {
    let (mut start, mut end, mut replies) = (0, 0, Vec::new());
    loop {
        let mut out = Vec::new();
        let Step { used, next } = run(&input[start..end], &mut out);
        assert!(used <= end - start, "{used} bytes taken of {}", end - start);
        start += used;
        replies.append(&mut out);
        match next {
            // What follows is another node's.
            Next::Close | Next::Relay(_) | Next::Wait | Next::Look => return replies,
            Next::Send => {}
            Next::Read(more) => {
                assert!(more > 0);
                if end == input.len() {
                    return replies;
                }
                end = (end + piece).min(input.len());
            }
        }
    }
}
