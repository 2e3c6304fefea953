//! A connection of memcached's protocols: requests in, answers out.

use std::time::Instant;

use remora::connection::token::Token;

use crate::front::keyspace::TablespaceId;
use crate::front::memcached::conversation::{Call, Conversation, Taken, Walk};
use crate::front::memcached::mark::{self, Begin, Who};
use crate::front::memcached::{binary, text};
use crate::front::server_state::{HIGH_WATER, Next, ServerState, Step, Turn};
use crate::stats::{Op, Way};

const NOT_PRIMARY: &str = "this node is not the primary of its cluster: ask another one";
const STRANGE: &str = "the node that relays is of another group";

/// A connection. Its first byte says whether it speaks text or binary.
#[derive(Debug)]
pub struct Session {
    state: Conversation,
    /// Another node relays the client.
    is_relayed: bool,
}

impl Session {
    /// A new connection.
    pub fn new(server: &ServerState) -> Session {
        let is_known = server.settings.password().is_none();
        let state =
            Conversation { is_binary: None, skip: 0, looked: 0, walk: Walk::default(), is_known };
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
        let (mut used, is_elsewhere) = (self.skip(input.len()), turn.is_elsewhere);
        // (What a relayed client is, the node has said that relays.)
        if !self.state.is_known && !self.is_relayed {
            self.state.is_known = turn.server.settings.password().is_none();
        }
        if self.state.is_binary.is_none() && !self.is_relayed {
            match mark::begin(input) {
                Begin::Mark(len, token, who) if self.is_of_group(turn, token) => {
                    used = len;
                    self.is_relayed = true;
                    self.state.is_known = is_known(turn.server.settings.password(), who);
                }
                Begin::Mark(..) => return refuse(&STRANGE, input, out),
                Begin::Part => return Step { used, next: Next::Read(1) },
                Begin::Request => {}
            }
            if self.is_relayed && !is_elsewhere {
                out.extend_from_slice(mark::ACCEPTED);
            }
        }
        if is_elsewhere {
            let to = turn.server.keeper.relays_to();
            // (Nobody else goes on with a walk that has begun here.)
            return match to.filter(|_| !self.is_relayed && !self.state.walk.has_begun()) {
                Some(_) if self.state.skip > 0 => Step { used, next: Next::Read(1) },
                Some(to) => Step { used, next: Next::Relay(to) },
                None => refuse(&NOT_PRIMARY, input, out),
            };
        }
        let ts = match turn.server.memcached() {
            Ok(ts) => ts,
            Err(refused) => return refuse(&refused, input, out),
        };
        let step = self.run_in(turn, ts, &input[used..], out);
        Step { used: used + step.used, next: step.next }
    }

    /// What the node to which the client is relayed gets before the client's own bytes; `None` if
    /// this one has no group.
    pub(crate) fn mark(&self, server: &ServerState) -> Option<Vec<u8>> {
        let token = server.keeper.group_token()?;
        let who = match (self.state.is_known, server.settings.password()) {
            (false, _) => Who::Stranger,
            (true, Some(_)) => Who::Known,
            (true, None) => Who::Anybody,
        };
        Some(mark::mark(&token, who))
    }

    /// Whether a mark is of a node of this one's group.
    fn is_of_group(&self, turn: &Turn, token: [u8; 16]) -> bool {
        let own = turn.server.keeper.group_token();
        let is_its = own.is_some_and(|own| own.matches(Token::new(token).as_ref()));
        turn.counts.auth_refused.add(u64::from(!is_its));
        is_its
    }

    fn run_in(
        &mut self,
        turn: &mut Turn,
        ts: TablespaceId,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Step {
        let (mut used, mut before) = (0, Instant::now());
        let server = turn.server.clone();
        loop {
            if out.len() >= HIGH_WATER {
                return Step { used, next: Next::Send };
            }
            used += self.skip(input.len() - used);
            let rest = &input[used..];
            let Some(first) = rest.first() else { return Step { used, next: Next::Read(1) } };
            turn.go_on(before);
            let is_binary = *self.state.is_binary.get_or_insert(*first == binary::REQUEST);
            let mut call = Call { state: &mut self.state, turn, ts, out };
            let mut taken = Taken::Close;
            server.enter(false, || {
                taken = match is_binary {
                    true => binary::run(&mut call, rest),
                    false => text::run(&mut call, rest),
                };
            });
            // (What a get tells of its keys it has noted itself.)
            if !matches!(taken, Taken::Request(_, Op::Get) | Taken::Wants(_)) {
                turn.see_all();
            }
            match taken {
                // Others have their turns first.
                Taken::Again => return Step { used, next: Next::Send },
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
                    note(turn, took, rest, is_binary);
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

/// Whether a relayed client need not give this password, or none.
fn is_known(password: Option<String>, who: Who) -> bool {
    match who {
        Who::Stranger => false,
        Who::Known => true,
        Who::Anybody => password.is_none(),
    }
}

/// Ends a connection that nothing can be done for.
fn refuse(why: &dyn std::fmt::Display, input: &[u8], out: &mut Vec<u8>) -> Step {
    let text = why.to_string().replace(['\r', '\n'], " ");
    out.extend_from_slice(format!("SERVER_ERROR {text}\r\n").as_bytes());
    Step { used: input.len(), next: Next::Close }
}

/// Lists a request that took long, by its first line, or by its op-code and key: the value may be a
/// password.
fn note(turn: &Turn, took_ns: u64, request: &[u8], is_binary: bool) {
    let (stats, took_us) = (&turn.server.stats, took_ns / 1000);
    if stats.slow_us() >= 0 && took_us >= stats.slow_us() as u64 {
        let opcode;
        let mut words = vec![&b"memcached"[..]];
        if is_binary {
            opcode = format!("{:#04x}", request.get(1).unwrap_or(&0));
            words.extend([opcode.as_bytes(), binary::key_of(request)]);
        } else {
            let end = memchr::memchr2(b'\r', b'\n', request).unwrap_or(request.len());
            words.push(&request[..end]);
        }
        stats.note(took_us, turn.now / 1000, words.into_iter(), "", "");
    }
}
