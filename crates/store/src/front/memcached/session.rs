//! A connection of memcached's protocols: requests in, answers out.

use std::time::Instant;

use crate::front::keyspace::{Refused, TablespaceId};
use crate::front::memcached::state::{Call, State, Taken};
use crate::front::memcached::{binary, operations, text};
use crate::front::world::{HIGH_WATER, Next, Step, Turn, World};
use crate::stats::Way;

/// A connection. Its first byte says whether it speaks text or binary.
#[derive(Debug)]
pub struct Session {
    state: State,
}

impl Session {
    /// A new connection.
    pub fn new(world: &World) -> Session {
        let is_known = world.settings.password().is_none();
        Session { state: State { is_binary: None, skip: 0, looked: 0, is_known } }
    }

    /// The memory it keeps, in bytes: none beside its buffers.
    pub(crate) fn bytes(&self) -> usize {
        0
    }

    /// Carries out what is whole in `input`, which begins with a request, and appends the answers
    /// to `out`. Of a request that is not whole, the same bytes must stand at the begin of the
    /// next call's input.
    pub fn run(&mut self, turn: &mut Turn, input: &[u8], out: &mut Vec<u8>) -> Step {
        let ready = turn.world.memcached().and_then(|ts| {
            if turn.world.keeper.is_elsewhere() {
                let why = "this node is not the primary of its cluster: ask another one";
                return Err(Refused::Other(why.to_owned()));
            }
            operations::flush_if_due(turn, ts)?;
            Ok(ts)
        });
        let ts = match ready {
            Ok(ts) => ts,
            Err(refused) => {
                let text = refused.to_string().replace(['\r', '\n'], " ");
                out.extend_from_slice(format!("SERVER_ERROR {text}\r\n").as_bytes());
                return Step { used: input.len(), next: Next::Close };
            }
        };
        let step = self.run_in(turn, ts, input, out);
        turn.version = turn.version.max(turn.world.keeper.seen());
        step
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

/// Lists a request that took long, by its first line.
fn note(turn: &Turn, took_ns: u64, request: &[u8]) {
    let (stats, took_us) = (&turn.world.stats, took_ns / 1000);
    if stats.slow_us() >= 0 && took_us >= stats.slow_us() as u64 {
        let end = memchr::memchr2(b'\r', b'\n', request).unwrap_or(request.len());
        let words = [&b"memcached"[..], &request[..end.min(request.len())]];
        stats.note(took_us, turn.now / 1000, words.into_iter(), "", "");
    }
}
