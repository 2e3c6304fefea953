//! A command, and what it is given.

use crate::front::keyspace::{ChangeRefused, Edit, Found, Seen, TablespaceId};
use crate::front::redis::conversation::Conversation;
use crate::front::redis::reply::Reply;
use crate::front::redis::request::{Arguments, decimal};
use crate::front::server_state::Turn;
use crate::stats::Op;

/// A row of the table of commands.
pub(crate) struct Command {
    /// Its name, in small letters.
    pub(crate) name: &'static str,
    /// How many arguments it takes with its name; negative: at least so many.
    pub(crate) arity: i32,
    /// What it may do: see the constants below.
    pub(crate) flags: u16,
    /// The first and last argument that are keys, and the step between them; as Redis' `COMMAND`.
    pub(crate) keys: (i32, i32, i32),
    /// What statistics count it as.
    pub(crate) op: Op,
    /// Redis' group of commands.
    pub(crate) group: &'static str,
    /// One sentence.
    pub(crate) summary: &'static str,
    /// What it does.
    pub(crate) run: fn(&mut Call<'_>) -> Done,
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// It changes values.
pub(crate) const WRITE: u16 = 1;
/// It reads values.
pub(crate) const READ: u16 = 2;
/// It takes the same time whatever the values are.
pub(crate) const FAST: u16 = 4;
/// It may need memory.
pub(crate) const GROWS: u16 = 8;
/// It is for those who run the server.
pub(crate) const ADMIN: u16 = 16;
/// It may come before the password.
pub(crate) const STRANGER: u16 = 32;
/// It is carried out at once in a transaction.
pub(crate) const AT_ONCE: u16 = 64;
/// It changes several keys, and nobody may see half of it.
pub(crate) const ALONE: u16 = 128;
/// It has subcommands.
pub(crate) const CONTAINER: u16 = 256;
/// It cannot stand in a transaction.
pub(crate) const NO_MULTI: u16 = 512;

impl Command {
    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Whether it matters on which node of a cluster it runs.
    pub(crate) fn is_about_keys(&self) -> bool {
        self.has(READ | WRITE) || self.keys.0 > 0
    }

    /// Whether it takes `count` arguments, its name among them.
    pub(crate) fn takes(&self, count: usize) -> bool {
        let least = self.arity.unsigned_abs() as usize;
        if self.arity < 0 { count >= least } else { count == least }
    }
}

/// Why a command was not carried out: the error that the client gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// A text.
    Is(&'static str),
    /// A text with the client's bytes in it.
    Says(Vec<u8>),
    /// The log does not take the change, for this reason. That says nothing of any key.
    Unlogged(String),
}

pub(crate) const SYNTAX: Wrong = Wrong::Is("ERR syntax error");
pub(crate) const NOT_INTEGER: Wrong = Wrong::Is("ERR value is not an integer or out of range");
pub(crate) const NOT_FLOAT: Wrong = Wrong::Is("ERR value is not a valid float");
pub(crate) const NO_KEY: Wrong = Wrong::Is("ERR no such key");
pub(crate) const TOO_LONG: Wrong =
    Wrong::Is("ERR string exceeds maximum allowed size (proto-max-bulk-len)");

impl Wrong {
    pub(crate) fn says(text: String) -> Wrong {
        Wrong::Says(text.into_bytes())
    }

    /// Writes it.
    pub(crate) fn write(&self, reply: &mut Reply<'_>) {
        match self {
            Wrong::Is(text) => reply.error(text),
            Wrong::Says(text) => reply.error_bytes(text),
            Wrong::Unlogged(reason) => reply.error(&format!(
                "MISCONF Errors writing to the log: {reason}. Commands that change data are refused"
            )),
        }
    }
}

impl From<ChangeRefused> for Wrong {
    fn from(refused: ChangeRefused) -> Wrong {
        match refused {
            ChangeRefused::Memory(_) => {
                Wrong::Is("OOM command not allowed when used memory > 'maxmemory'.")
            }
            ChangeRefused::Value { .. } => TOO_LONG,
            ChangeRefused::Log(reason) => Wrong::Unlogged(reason),
            ChangeRefused::Key { .. } | ChangeRefused::Other(_) => {
                Wrong::says(format!("ERR {refused}"))
            }
        }
    }
}

/// What a command answers: it has written its reply, or what it returns is the reply.
pub(crate) type Done = Result<(), Wrong>;

/// What a command is given.
pub(crate) struct Call<'a> {
    pub(crate) arguments: Arguments<'a>,
    pub(crate) state: &'a mut Conversation,
    pub(crate) turn: &'a mut Turn,
    pub(crate) reply: Reply<'a>,
    /// Whether it is part of a transaction that is carried out.
    pub(crate) is_in_exec: bool,
    /// The table of commands.
    pub(crate) commands: &'static [Command],
}

impl<'a> Call<'a> {
    /// The argument at `index`; 0 is the command's name.
    pub(crate) fn at(&self, index: usize) -> &'a [u8] {
        self.arguments.at(index)
    }

    /// How many arguments there are, with the command's name.
    pub(crate) fn len(&self) -> usize {
        self.arguments.len()
    }

    /// The argument at `index`, as a whole number.
    pub(crate) fn integer(&self, index: usize) -> Result<i64, Wrong> {
        decimal(self.at(index)).ok_or(NOT_INTEGER)
    }

    /// A number without a sign, of up to 64 bits.
    pub(crate) fn unsigned(&self, index: usize) -> Result<u64, Wrong> {
        let text = std::str::from_utf8(self.at(index)).ok();
        text.and_then(|text| text.parse().ok()).ok_or(NOT_INTEGER)
    }

    /// Whether the argument at `index` is this word, in letters of any size.
    pub(crate) fn is(&self, index: usize, word: &str) -> bool {
        index < self.len() && self.at(index).eq_ignore_ascii_case(word.as_bytes())
    }

    /// The argument that must follow the one at `index`, which is then the last that was read.
    pub(crate) fn after(&self, index: &mut usize) -> Result<&'a [u8], Wrong> {
        *index += 1;
        if *index < self.len() { Ok(self.at(*index)) } else { Err(SYNTAX) }
    }

    /// The tablespace of the connection's database.
    pub(crate) fn ts(&self) -> Result<TablespaceId, Wrong> {
        Ok(self.turn.server.database(self.state.database)?)
    }

    /// Changes a key. The answer is whether something was changed.
    pub(crate) fn change<'v>(
        &mut self,
        key: &[u8],
        decide: impl FnMut(Option<Seen<'_>>, &mut Vec<u8>) -> Edit<'v>,
    ) -> Result<bool, Wrong> {
        let ts = self.ts()?;
        self.change_in(ts, key, decide)
    }

    /// Changes a key of this tablespace. The answer is whether something was changed.
    pub(crate) fn change_in<'v>(
        &mut self,
        ts: TablespaceId,
        key: &[u8],
        mut decide: impl FnMut(Option<Seen<'_>>, &mut Vec<u8>) -> Edit<'v>,
    ) -> Result<bool, Wrong> {
        let now = self.turn.now;
        let version = self.turn.server.keyspace.update(ts, key, now, &mut decide)?;
        if let Some(version) = version {
            self.turn.version = self.turn.version.max(version);
        }
        Ok(version.is_some())
    }

    /// What is known of a key.
    pub(crate) fn look(&mut self, key: &[u8]) -> Result<Option<Found>, Wrong> {
        let ts = self.ts()?;
        Ok(self.turn.server.keyspace.look(ts, key, self.turn.now))
    }

    /// The key's value, copied into `value`.
    pub(crate) fn value(
        &mut self,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<Option<Found>, Wrong> {
        let ts = self.ts()?;
        let found = self.turn.server.keyspace.get(ts, key, self.turn.now, value);
        self.count(found.is_some());
        Ok(found)
    }

    /// Counts a read that found its key, or did not.
    pub(crate) fn count(&self, found: bool) {
        let counts = &self.turn.counts;
        if found { counts.hits.add(1) } else { counts.misses.add(1) }
    }

    /// Ends the connection, as a reply exceeds what may wait for it.
    pub(crate) fn overflow(&mut self) -> Done {
        self.turn.counts.memory_refused.add(1);
        self.state.is_closing = true;
        Err(Wrong::Is("ERR the reply exceeds client-output-buffer-limit; the connection is closed"))
    }

    /// The error of a subcommand that is not there, or has other arguments.
    pub(crate) fn no_subcommand(&self) -> Done {
        let name = String::from_utf8_lossy(self.at(0)).to_uppercase();
        let sub = String::from_utf8_lossy(self.at(1)).into_owned();
        Err(Wrong::says(format!("ERR unknown subcommand '{sub:.128}'. Try {name} HELP.")))
    }

    /// The error of a subcommand with another number of arguments.
    pub(crate) fn arity(&self) -> Done {
        let name = String::from_utf8_lossy(self.at(0)).to_lowercase();
        let sub = String::from_utf8_lossy(self.at(1)).to_lowercase();
        Err(Wrong::says(format!("ERR wrong number of arguments for '{name}|{sub}' command")))
    }

    /// Help in lines, as `COMMAND HELP` gives it.
    pub(crate) fn help(&mut self, lines: &[&str]) -> Done {
        if self.len() != 2 {
            return self.arity();
        }
        let name = String::from_utf8_lossy(self.at(0)).to_uppercase();
        self.reply.array(lines.len() + 1);
        let head = format!("{name} <subcommand> [<arg> ...]. Subcommands are:");
        self.reply.simple(&head);
        lines.iter().for_each(|line| self.reply.simple(line));
        Ok(())
    }
}
