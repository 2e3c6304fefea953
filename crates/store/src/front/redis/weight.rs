//! What a transaction may bring to the log. It is written there as a whole, so all of it is in
//! memory until it ends; and a short one may change long values often. So one that may bring too
//! much is refused before it changes anything.

use std::collections::{BTreeSet, HashMap};

use crate::front::keyspace::TablespaceId;
use crate::front::redis::command::{Call, Command, Done, WRITE, Wrong};
use crate::front::redis::conversation::Transaction;
use crate::front::redis::request::{Arguments, Kept, decimal};
use crate::front::redis::routing::keys_of;
use crate::front::redis::table::TABLE;
use crate::item::VALUE_MAX;

/// The most bytes that a transaction may bring.
const MOST: usize = 256 << 20;
/// What a record takes besides its key and value, with some room.
const RECORD: usize = 64;
/// No string of so many bytes is compressed into fewer than one.
const COMPRESSED: usize = 264 / 3;

/// Refuses a transaction that may bring more to the log than its memory is for.
pub(super) fn check(call: &Call<'_>, transaction: &Transaction) -> Done {
    if !call.turn.server.keeper.is_logged() || most_logged(call, transaction) <= MOST {
        return Ok(());
    }
    Err(Wrong::says(format!(
        "EXECABORT Transaction discarded because its changes may take more than {MOST} bytes in \
         the log, which has all of them in memory until it ends: make several of it"
    )))
}

fn most_logged(call: &Call<'_>, transaction: &Transaction) -> usize {
    let requests = || transaction.requests.iter().map(|(row, kept)| (&TABLE[*row], kept));
    let writes = || requests().filter(|(command, _)| command.has(WRITE));
    let given: usize = writes().map(|(command, kept)| given(command, kept)).sum();
    let remade = writes().filter(|(command, _)| remakes(command)).count();
    let at_most = given.saturating_add(remade.saturating_mul(VALUE_MAX));
    if at_most <= MOST {
        return at_most;
    }
    let chosen = requests().filter(|(command, _)| command.name == "select");
    let chosen =
        chosen.filter_map(|(_, kept)| usize::try_from(decimal(kept.arguments().at(1))?).ok());
    let used: BTreeSet<_> = std::iter::once(call.state.database).chain(chosen).collect();
    let mut lengths = Lengths {
        call,
        spaces: used.iter().filter_map(|index| call.turn.server.used_database(*index)).collect(),
        known: HashMap::new(),
        value: Vec::new(),
    };
    let remade = writes().map(|(command, kept)| lengths.change(command, kept));
    remade.fold(given, usize::saturating_add)
}

/// What a request brings of its own.
fn given(command: &Command, kept: &Kept) -> usize {
    kept.bytes() + (keys_of(command, kept.arguments()).count() + 1) * RECORD
}

/// Whether a command may write more than its request has: what a key has already, or zeros.
fn remakes(command: &Command) -> bool {
    matches!(
        command.name,
        "append"
            | "bitfield"
            | "bitop"
            | "copy"
            | "move"
            | "rename"
            | "renamenx"
            | "restore"
            | "setbit"
            | "setrange"
    )
}

/// How long a value becomes at most by a command that remakes it, whose keys have values of up to
/// this length.
fn remade(command: &Command, arguments: Arguments<'_>, there: usize) -> usize {
    let number =
        |at: usize| decimal(arguments.at(at)).and_then(|number| usize::try_from(number).ok());
    let len = match command.name {
        "append" => there + arguments.at(2).len(),
        "setbit" => there.max(number(2).unwrap_or(0) / 8 + 1),
        "setrange" => there.max(number(2).unwrap_or(0).saturating_add(arguments.at(3).len())),
        "bitfield" => there.max(bitfield_end(arguments)),
        "restore" => arguments.at(3).len().saturating_mul(COMPRESSED),
        _ => there,
    };
    len.min(VALUE_MAX)
}

/// Where the last field ends that a `BITFIELD` may change, in bytes.
fn bitfield_end(arguments: Arguments<'_>) -> usize {
    let end = |at: usize| {
        let (digits, bits) = match arguments.at(at) {
            [b'#', digits @ ..] => (digits, 64),
            digits => (digits, 1),
        };
        let offset = usize::try_from(decimal(digits)?).ok()?;
        Some(offset.saturating_mul(bits).saturating_add(64) / 8 + 1)
    };
    let changes = |at: &usize| {
        ["set", "incrby"].iter().any(|word| arguments.at(*at).eq_ignore_ascii_case(word.as_bytes()))
    };
    // (Behind such a word stand the field's type and its offset.)
    let fields = (2..arguments.len().saturating_sub(2)).filter(changes);
    fields.filter_map(|at| end(at + 2)).max().unwrap_or(0)
}

/// How long the values of keys may be, as the transaction goes on. A key is the same one in all
/// databases that it uses: the longest of its values counts.
struct Lengths<'a> {
    call: &'a Call<'a>,
    spaces: Vec<TablespaceId>,
    known: HashMap<&'a [u8], usize>,
    value: Vec<u8>,
}

impl<'a> Lengths<'a> {
    /// A command changes its keys. The answer is what it writes beyond what its request has.
    fn change(&mut self, command: &Command, kept: &'a Kept) -> usize {
        let (arguments, mut there) = (kept.arguments(), 0);
        for key in keys_of(command, arguments) {
            there = there.max(self.of(key));
        }
        let (value, beyond) = if remakes(command) {
            let value = remade(command, arguments, there);
            (value, value)
        } else {
            (kept.bytes(), 0)
        };
        for key in keys_of(command, arguments) {
            self.known.entry(key).and_modify(|len| *len = value.max(*len));
        }
        beyond
    }

    /// How long a key's value is at most.
    fn of(&mut self, key: &'a [u8]) -> usize {
        let Lengths { call, spaces, known, value } = self;
        let (keyspace, now) = (&call.turn.server.keyspace, call.turn.now);
        *known.entry(key).or_insert_with(|| {
            let len = |space: &TablespaceId| {
                value.clear();
                _ = keyspace.get_unnoticed(*space, key, now, value);
                value.len()
            };
            spaces.iter().map(len).max().unwrap_or(0)
        })
    }
}
