//! A connection of memcached's protocols: requests in, answers out.

use std::time::Instant;

use crate::front::keyspace::TablespaceId;
use crate::front::memcached::mark::{self, Begin};
use crate::front::memcached::state::{Call, State, Taken};
use crate::front::memcached::{binary, operations, text};
use crate::front::world::{HIGH_WATER, Next, Step, Turn, World};
use crate::stats::Way;

const NOT_PRIMARY: &str = "this node is not the primary of its cluster: ask another one";
const UNLIKE: &str =
    "the node that relays has another password: give all nodes of a group the same";

/// A connection. Its first byte says whether it speaks text or binary.
#[derive(Debug)]
pub struct Session {
    state: State,
    /// Another node relays the client.
    is_relayed: bool,
}

impl Session {
    /// A new connection.
    pub fn new(world: &World) -> Session {
        let is_known = world.settings.password().is_none();
        let state = State { is_binary: None, skip: 0, looked: 0, is_known };
        Session { state, is_relayed: false }
    }

    /// The memory it keeps, in bytes: none beside its buffers.
    pub(crate) fn bytes(&self) -> usize {
        0
    }

    /// Carries out what is whole in `input`, which begins with a request, and appends the answers
    /// to `out`. Of a request that is not whole, the same bytes must stand at the begin of the
    /// next call's input.
    pub fn run(&mut self, turn: &mut Turn, input: &[u8], out: &mut Vec<u8>) -> Step {
        let mut used = self.skip(input.len());
        if self.state.is_binary.is_none() && !self.is_relayed {
            match mark::begin(input) {
                Begin::Mark(len, password) if self.is_let_in(turn, password) => used = len,
                Begin::Mark(..) => return refuse(&UNLIKE, input, out),
                Begin::Part => return Step { used, next: Next::Read(1) },
                Begin::Request => {}
            }
        }
        if turn.world.keeper.is_elsewhere() {
            let to = turn.world.keeper.relays_to();
            return match to.filter(|_| !self.is_relayed) {
                Some(_) if self.state.skip > 0 => Step { used, next: Next::Read(1) },
                Some(to) => Step { used, next: Next::Relay(to) },
                None => refuse(&NOT_PRIMARY, input, out),
            };
        }
        let ready = turn.world.memcached().and_then(|ts| {
            operations::flush_if_due(turn, ts)?;
            Ok(ts)
        });
        let ts = match ready {
            Ok(ts) => ts,
            Err(refused) => return refuse(&refused, input, out),
        };
        let step = self.run_in(turn, ts, &input[used..], out);
        turn.version = turn.version.max(turn.world.keeper.seen());
        Step { used: used + step.used, next: step.next }
    }

    /// What the node to which the client is relayed gets before the client's own bytes.
    pub(crate) fn mark(&self, world: &World) -> Vec<u8> {
        let password = world.settings.password().filter(|_| self.state.is_known);
        mark::mark(password.as_deref())
    }

    /// Takes another node's mark: its client has given this password, or none so far.
    fn is_let_in(&mut self, turn: &Turn, password: &[u8]) -> bool {
        let settings = &turn.world.settings;
        let is_known = settings.is_password(password);
        let is_right = is_known || password.is_empty() || settings.password().is_none();
        turn.counts.auth_refused.add(u64::from(!is_right));
        self.state.is_known |= is_known;
        self.is_relayed = true;
        is_right
    }

    fn run_in(
        &mut self,
        turn: &mut Turn,
        ts: TablespaceId,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Step {
        let (mut used, mut before) = (0, Instant::now());
        loop {
            if out.len() >= HIGH_WATER {
                return Step { used, next: Next::Send };
            }
            used += self.skip(input.len() - used);
            let rest = &input[used..];
            let Some(first) = rest.first() else { return Step { used, next: Next::Read(1) } };
            let is_binary = *self.state.is_binary.get_or_insert(*first == binary::REQUEST);
            let mut call = Call { state: &mut self.state, turn, ts, out };
            let taken = match is_binary {
                true => binary::run(&mut call, rest),
                false => text::run(&mut call, rest),
            };
            match taken {
                Taken::Wants(more) => return Step { used, next: Next::Read(more) },
                Taken::Close => return Step { used, next: Next::Close },
                Taken::Request(len, op) => {
                    used += len.min(rest.len());
                    self.state.skip = (len - len.min(rest.len())) as u64;
                    self.state.looked = 0;
                    let after = Instant::now();
                    let took = after.duration_since(before).as_nanos() as u64;
                    turn.counts.latencies(Way::Memcached, op).record(took);
                    turn.counts.commands.add(1);
                    before = after;
                    note(turn, took, rest);
                }
            }
        }
    }

    /// Passes over what is left of a refused value.
    fn skip(&mut self, there: usize) -> usize {
        let passed = self.state.skip.min(there as u64);
        self.state.skip -= passed;
        passed as usize
    }
}

/// Ends a connection that nothing can be done for.
fn refuse(why: &dyn std::fmt::Display, input: &[u8], out: &mut Vec<u8>) -> Step {
    let text = why.to_string().replace(['\r', '\n'], " ");
    out.extend_from_slice(format!("SERVER_ERROR {text}\r\n").as_bytes());
    Step { used: input.len(), next: Next::Close }
}

/// Lists a request that took long, by its first line.
fn note(turn: &Turn, took_ns: u64, request: &[u8]) {
    let (stats, took_us) = (&turn.world.stats, took_ns / 1000);
    if stats.slow_us() >= 0 && took_us >= stats.slow_us() as u64 {
        let end = memchr::memchr2(b'\r', b'\n', request).unwrap_or(request.len());
        let words = [&b"memcached"[..], &request[..end.min(request.len())]];
        stats.note(took_us, turn.now / 1000, words.into_iter(), "", "");
    }
}
