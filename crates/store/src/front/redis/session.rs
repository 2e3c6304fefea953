//! A connection of Redis' protocol: requests in, replies out.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::front::clients::{Client, Ends};
use crate::front::redis::command::{
    ALONE, AT_ONCE, Call, Command, Done, NO_MULTI, READ, STRANGER, WRITE, Wrong,
};
use crate::front::redis::commands::transaction::is_disturbed;
use crate::front::redis::conversation::{Conversation, Replies, Transaction};
use crate::front::redis::reply::Reply;
use crate::front::redis::request::{Arguments, Kept, Progress, Reader, RequestLimits, decimal};
use crate::front::redis::routing::{self, What, keys_of};
use crate::front::redis::table::{TABLE, find, find_again};
use crate::front::redis::weight;
use crate::front::server_state::{HIGH_WATER, Next, ServerState, Step, Turn};
use crate::stats::Way;
use crate::way::clock::now_ms;

/// A connection.
pub struct Session {
    reader: Reader,
    state: Conversation,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("state", &self.state).finish_non_exhaustive()
    }
}

fn limits(server: &ServerState) -> RequestLimits {
    let settings = &server.settings;
    RequestLimits {
        arguments: 1 << 20,
        bulk_bytes: settings.bulk_bytes.load(Relaxed) as usize,
        request_bytes: settings.request_bytes.load(Relaxed).min(1 << 31) as usize,
    }
}

impl Session {
    /// A connection without a socket, of which nobody else hears.
    pub fn detached(server: &ServerState) -> Session {
        let ends = Ends { peer: String::new(), local: String::new(), descriptor: -1 };
        let client = server.clients.detached(Way::Redis, ends, now_ms());
        Session::new(server, client)
    }

    pub(crate) fn new(server: &ServerState, client: Arc<Client>) -> Session {
        let is_known = server.settings.password().is_none();
        Session { reader: Reader::default(), state: Conversation::new(client, is_known) }
    }

    /// The memory it keeps, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.reader.bytes() + self.state.bytes()
    }

    /// Carries out what is whole in `input`, which begins with a request, and appends the replies
    /// to `out`. Of a request that is not whole, the same bytes must stand at the begin of the
    /// next call's input.
    pub fn run(&mut self, turn: &mut Turn, input: &[u8], out: &mut Vec<u8>) -> Step {
        let limits = limits(&turn.server);
        let mut used = 0;
        let mut before = Instant::now();
        self.state.put_off = None;
        if !self.state.is_known {
            self.state.is_known = turn.server.settings.password().is_none();
        }
        loop {
            if out.len() >= HIGH_WATER {
                return Step { used, next: Next::Send };
            }
            let rest = &input[used..];
            match self.reader.read(rest, &limits, !self.state.is_known) {
                Ok(Progress::Wants(more)) => return Step { used, next: Next::Read(more) },
                Ok(Progress::Whole(len)) => {
                    let arguments = self.reader.arguments(rest);
                    if turn.server.pause.is_set() && is_held_back(&self.state, turn, arguments) {
                        self.reader.next();
                        return Step { used, next: Next::Wait };
                    }
                    if is_waiting(&mut self.state, turn, arguments) {
                        self.reader.next();
                        return Step { used, next: Next::Look };
                    }
                    if !arguments.is_empty() {
                        before = carry_out(&mut self.state, turn, arguments, out, before);
                    }
                    self.reader.next();
                    used += len;
                }
                Err(refusal) => {
                    turn.counts.protocol_errors.add(1);
                    self.reply(turn, out).error(&format!("ERR {refusal}"));
                    return Step { used, next: Next::Close };
                }
            }
            if self.state.is_closing {
                return Step { used, next: Next::Close };
            }
        }
    }

    fn reply<'a>(&self, turn: &Turn, out: &'a mut Vec<u8>) -> Reply<'a> {
        let limit = turn.server.settings.output_bytes.load(Relaxed) as usize;
        Reply::new(out, self.state.version, limit)
    }
}

/// Whether a request waits for the end of a pause. What would be refused anyway does not, nor does
/// what ends the pause.
#[cold]
fn is_held_back(state: &Conversation, turn: &Turn, arguments: Arguments<'_>) -> bool {
    let has = |index: usize, word: &str| {
        index < arguments.len() && arguments.at(index).eq_ignore_ascii_case(word.as_bytes())
    };
    let found = if arguments.is_empty() { None } else { find(arguments.at(0)) };
    let Some((_, command)) = found.filter(|(_, command)| command.takes(arguments.len())) else {
        return false;
    };
    let is_exempt = command.name == "quit" || has(0, "client") && has(1, "unpause");
    let waiting = state.transaction.iter().flat_map(|waiting| &waiting.requests);
    let writes = command.has(WRITE)
        || command.name == "exec" && waiting.into_iter().any(|(row, _)| TABLE[*row].has(WRITE));
    !is_exempt
        && (state.is_known || command.has(STRANGER))
        && turn.server.pause.holds(turn.now, writes)
}

/// Whether a request is a `WAIT` for more nodes than hold what the client has changed, whose time
/// is not over.
fn is_waiting(state: &mut Conversation, turn: &Turn, arguments: Arguments<'_>) -> bool {
    let server = &turn.server;
    let is_wait = || arguments.len() == 3 && arguments.at(0).eq_ignore_ascii_case(b"wait");
    if !server.is_clustered || !is_wait() || !state.is_known || state.transaction.is_some() {
        return false;
    }
    let numbers = (decimal(arguments.at(1)), decimal(arguments.at(2)));
    let (Some(wanted), Some(timeout_ms @ 0..)) = numbers else { return false };
    let since = *state.waits_since.get_or_insert_with(Instant::now);
    let is_over = timeout_ms > 0 && since.elapsed().as_millis() >= timeout_ms as u128;
    let holders = server.keeper.holders(state.written) as i64;
    let waits = holders < wanted && !is_over && !turn.is_elsewhere;
    if !waits {
        state.waits_since = None;
    }
    waits
}

/// Carries out one request, and counts it. The answer is when that was done.
fn carry_out(
    state: &mut Conversation,
    turn: &mut Turn,
    arguments: Arguments<'_>,
    out: &mut Vec<u8>,
    before: Instant,
) -> Instant {
    turn.go_on(before);
    let start = out.len();
    let last = state.client.command.load(Relaxed) as usize;
    let found = find_again(last, arguments.at(0));
    let limit = turn.server.settings.output_bytes.load(Relaxed) as usize;
    // (Before it, there are the answers to other requests of one pipeline.)
    let reply = Reply::new(out, state.version, start.saturating_add(limit));
    let mut call = Call { arguments, state, turn, reply, is_in_exec: false, commands: TABLE };
    let done = match found {
        None if is_browser(arguments.at(0)) => {
            call.turn.counts.protocol_errors.add(1);
            call.state.is_closing = true;
            Ok(())
        }
        None => refuse(&mut call, Err(unknown(arguments))),
        Some((row, command)) => {
            call.state.client.command.store(row as u32, Relaxed);
            dispatch(&mut call, row, command)
        }
    };
    let done = if call.reply.is_full() {
        call.reply.truncate(start);
        call.overflow()
    } else {
        done
    };
    // Inside a transaction, the word of ASKING is for all of it.
    if call.state.transaction.is_none() {
        call.state.asks = call.state.asks.saturating_sub(1);
    }
    if let Err(wrong) = done {
        wrong.write(&mut call.reply);
        call.turn.counts.errors.add(1);
    }
    call.turn.counts.commands.add(1);
    match state.replies {
        Replies::On => {}
        Replies::Off | Replies::Skip => out.truncate(start),
        Replies::SkipNext => {
            out.truncate(start);
            state.replies = Replies::Skip;
            return note(state, turn, arguments, found, before);
        }
    }
    if state.replies == Replies::Skip {
        state.replies = Replies::On;
    }
    note(state, turn, arguments, found, before)
}

/// What is listed of an argument that may be a password.
const SECRET: &[u8] = b"(redacted)";

/// Whether an argument may be a password, which does not belong in a list that many may read.
fn is_secret(command: &Command, arguments: Arguments<'_>, at: usize) -> bool {
    match command.name {
        "auth" | "hello" => at > 0,
        // Each name has its value behind it.
        "config" => at > 2 && at % 2 == 1 && arguments.at(1).eq_ignore_ascii_case(b"set"),
        _ => false,
    }
}

/// Counts how long a request took, and lists it if that was long.
fn note(
    state: &Conversation,
    turn: &Turn,
    arguments: Arguments<'_>,
    found: Option<(usize, &'static Command)>,
    before: Instant,
) -> Instant {
    let after = Instant::now();
    let took = after.duration_since(before);
    let Some((_, command)) = found else { return after };
    turn.counts.latencies(Way::Redis, command.op).record(took.as_nanos() as u64);
    let slow_us = turn.server.stats.slow_us();
    if slow_us >= 0 && took.as_micros() as u64 >= slow_us as u64 {
        let client = &state.client;
        let show = |(at, word)| if is_secret(command, arguments, at) { SECRET } else { word };
        let shown: Vec<_> = arguments.from(0).enumerate().map(show).collect();
        let (took_us, at_s) = (took.as_micros() as u64, turn.now / 1000);
        let name = client.words().name.clone();
        turn.server.stats.note(took_us, at_s, shown.into_iter(), &client.peer, &name);
    }
    after
}

/// Whether a request comes from a browser that a page has sent here: its next lines could be
/// commands.
fn is_browser(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

/// The bytes of a client's that an error repeats.
const REPEATED: usize = 128;

fn unknown(arguments: Arguments<'_>) -> Wrong {
    let name = arguments.at(0);
    let mut text = b"ERR unknown command '".to_vec();
    text.extend_from_slice(&name[..name.len().min(REPEATED)]);
    text.extend_from_slice(b"', with args beginning with: ");
    let start = text.len();
    for argument in arguments.from(1) {
        let room = REPEATED.saturating_sub(text.len() - start);
        if room == 0 {
            break;
        }
        text.push(b'\'');
        text.extend_from_slice(&argument[..argument.len().min(room)]);
        text.extend_from_slice(b"' ");
    }
    Wrong::Says(text)
}

/// An error before a command is carried out spoils the transaction that it was to be part of.
fn refuse(call: &mut Call<'_>, done: Done) -> Done {
    if let Some(transaction) = &mut call.state.transaction {
        transaction.is_spoilt = true;
    }
    done
}

/// Checks that the command may be carried out, and does so or puts it aside.
fn dispatch(call: &mut Call<'_>, row: usize, command: &'static Command) -> Done {
    if !command.takes(call.len()) {
        return refuse_arity(call, command);
    }
    if !call.state.is_known && !command.has(STRANGER) {
        return refuse(call, Err(Wrong::Is("NOAUTH Authentication required.")));
    }
    if let Some(elsewhere) = routing::elsewhere(call, command) {
        let read = routing::read_copy(call, command);
        return read.unwrap_or_else(|| refuse(call, Err(elsewhere)));
    }
    if routing::is_about_a_backup(call, command) {
        return routing::own_copy(call, command.run);
    }
    let keys = keys_of(command, call.arguments);
    if call.state.transaction.is_some() && !command.has(AT_ONCE) {
        if command.has(NO_MULTI) {
            let wrong = Wrong::Is("ERR Command not allowed inside a transaction");
            return refuse(call, Err(wrong));
        }
        let what = What { writes: command.has(WRITE), alone: false };
        let done = routing::run(call, keys, what, |call| put_aside(call, row));
        let touches = call.turn.server.is_clustered && command.keys.0 > 0;
        routing::see(call.turn, touches);
        return if done.is_err() { refuse(call, done) } else { done };
    }
    if command.name == "exec"
        && let Some(transaction) = call.state.transaction.take()
    {
        return run_transaction(call, &transaction);
    }
    // (What moves slots takes their lock itself, which comes before the server's gate.)
    if !command.is_about_keys() {
        return (command.run)(call);
    }
    let done = if call.turn.server.is_plain() && !command.has(ALONE) {
        (command.run)(call)
    } else {
        let what = What { writes: command.has(WRITE), alone: command.has(ALONE) };
        routing::run(call, keys, what, command.run)
    };
    // (That the log takes nothing is told at once, and not when it has taken what waits.)
    if matches!(done, Err(Wrong::Unlogged(_))) {
        return done;
    }
    if command.has(READ) && !command.has(WRITE) && command.keys.0 > 0 {
        let ts = call.turn.server.used_database(call.state.database);
        call.turn.see_keys(ts, &mut keys_of(command, call.arguments));
        return done;
    }
    routing::see(call.turn, true);
    note_change(call, command.has(WRITE));
    done
}

/// The client may wait for what it has changed.
fn note_change(call: &mut Call<'_>, writes: bool) {
    if writes {
        call.state.written = call.turn.version;
    }
}

fn refuse_arity(call: &mut Call<'_>, command: &Command) -> Done {
    let text = format!("wrong number of arguments for '{}' command", command.name);
    if command.name == "exec" {
        call.state.transaction = None;
        call.state.watched.clear();
        call.state.publish();
        let text = format!("EXECABORT Transaction discarded because of: {text}");
        return Err(Wrong::says(text));
    }
    refuse(call, Err(Wrong::says(format!("ERR {text}"))))
}

fn run_transaction(call: &mut Call<'_>, transaction: &Transaction) -> Done {
    let requests = || transaction.requests.iter().map(|(row, kept)| (&TABLE[*row], kept));
    let keys = requests().flat_map(|(command, kept)| keys_of(command, kept.arguments()));
    let writes = requests().any(|(command, _)| command.has(WRITE));
    let touches = requests().any(|(command, _)| command.has(READ | WRITE));
    let done = if touches && call.turn.is_elsewhere {
        Err(Wrong::Is("EXECABORT Transaction discarded: this node is not its group's primary."))
    } else {
        let what = What { writes, alone: true };
        let done = routing::run(call, keys, what, |call| exec(call, transaction));
        routing::see(call.turn, touches);
        note_change(call, writes);
        done
    };
    call.state.watched.clear();
    call.state.publish();
    done
}

fn put_aside(call: &mut Call<'_>, row: usize) -> Done {
    let most = call.turn.server.settings.request_bytes.load(Relaxed) as usize;
    let kept = Kept::new(call.arguments);
    let Some(transaction) = &mut call.state.transaction else { return Ok(()) };
    transaction.bytes += kept.bytes() + size_of::<(usize, Kept)>();
    if transaction.bytes > most {
        let wrong = Wrong::says(format!(
            "ERR the transaction is longer than the server takes (limit: {most} bytes)"
        ));
        transaction.requests = Vec::new();
        transaction.bytes = 0;
        return refuse(call, Err(wrong));
    }
    transaction.requests.push((row, kept));
    call.state.client.queued.fetch_add(1, Relaxed);
    call.reply.simple("QUEUED");
    Ok(())
}

/// Carries out what was put aside. Nobody else's command runs meanwhile. All of it is carried out,
/// also where the answer becomes too long to be sent.
fn exec(call: &mut Call<'_>, transaction: &Transaction) -> Done {
    if transaction.is_spoilt {
        let wrong = "EXECABORT Transaction discarded because of previous errors.";
        return Err(Wrong::Is(wrong));
    }
    if is_disturbed(call) {
        call.reply.null_array();
        return Ok(());
    }
    weight::check(call, transaction)?;
    let (start, mut is_too_long) = (call.reply.len(), false);
    call.reply.array(transaction.requests.len());
    for (row, kept) in &transaction.requests {
        let done = {
            let mut inner = Call {
                arguments: kept.arguments(),
                state: &mut *call.state,
                turn: &mut *call.turn,
                reply: call.reply.reborrow(),
                is_in_exec: true,
                commands: call.commands,
            };
            let done = (TABLE[*row].run)(&mut inner);
            if let Err(wrong) = &done {
                wrong.write(&mut inner.reply);
            }
            done
        };
        call.turn.counts.errors.add(done.is_err().into());
        call.turn.counts.commands.add(1);
        call.reply.set_version(call.state.version);
        is_too_long |= call.reply.is_full();
        if is_too_long {
            call.reply.truncate(start);
        }
    }
    if is_too_long { call.overflow() } else { Ok(()) }
}
