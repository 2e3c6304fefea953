//! All commands: one table, and the way from a name to its row. What a client is told of an unknown
//! name or a wrong number of arguments is in [`session`](super::session).

use std::sync::LazyLock;

use crate::front::redis::command::{
    ADMIN, ALONE, AT_ONCE, CONTAINER, Command, FAST, GROWS, NO_MULTI, READ, STRANGER, WRITE,
};
use crate::front::redis::commands::{
    bitfield, bits, cluster, config, connection, dump, expiry, info, keys, latency, lcs, numbers,
    scan, select, server, strings, transaction,
};
use crate::stats::Op;

const NO_KEYS: (i32, i32, i32) = (0, 0, 0);
const ONE: (i32, i32, i32) = (1, 1, 1);
const TWO: (i32, i32, i32) = (1, 2, 1);
const ALL: (i32, i32, i32) = (1, -1, 1);
const PAIRS: (i32, i32, i32) = (1, -1, 2);
const SET: u16 = WRITE | GROWS;

macro_rules! table {
    ($($name:literal $arity:literal $flags:expr, $keys:expr, $op:ident,
        $group:literal: $summary:literal, $run:path;)+) => {
        /// All commands, by groups.
        pub(crate) static TABLE: &[Command] = &[$(Command {
            name: $name,
            arity: $arity,
            flags: $flags,
            keys: $keys,
            op: Op::$op,
            group: $group,
            summary: $summary,
            run: $run,
        }),+];
    };
}

table! {
    "append" 3 SET | FAST, ONE, Update,
        "string": "Appends a string to the value of a key.", strings::append;
    "bitcount" -2 READ, ONE, Get,
        "bitmap": "Counts the number of set bits in a string.", bits::bitcount;
    "bitfield" -2 SET, ONE, Update,
        "bitmap": "Reads and changes numbers of any width in a string.", bitfield::bitfield;
    "bitfield_ro" -2 READ | FAST, ONE, Get,
        "bitmap": "Reads numbers of any width in a string.", bitfield::bitfield_ro;
    "bitop" -4 SET | ALONE, (2, -1, 1), Put,
        "bitmap": "Combines the bits of several strings, and stores what it makes.", bits::bitop;
    "bitpos" -3 READ, ONE, Get,
        "bitmap": "Finds the first bit that is one, or zero.", bits::bitpos;
    "decr" 2 SET | FAST, ONE, Update,
        "string": "Decrements the number of a key by one.", numbers::decr;
    "decrby" 3 SET | FAST, ONE, Update,
        "string": "Decrements the number of a key.", numbers::decrby;
    "delex" -2 WRITE | FAST, ONE, Delete,
        "string": "Deletes a key if its value is as stated.", strings::delex;
    "digest" 2 READ | FAST, ONE, Get,
        "string": "Returns the XXH3 digest of a value.", strings::digest;
    "get" 2 READ | FAST, ONE, Get,
        "string": "Returns the value of a key.", strings::get;
    "getbit" 3 READ | FAST, ONE, Get,
        "bitmap": "Returns one bit of a string.", bits::getbit;
    "getdel" 2 WRITE | FAST, ONE, Delete,
        "string": "Returns the value of a key and deletes it.", strings::getdel;
    "getex" -2 WRITE | FAST, ONE, Touch,
        "string": "Returns the value of a key and sets when it ends.", strings::getex;
    "getrange" 4 READ, ONE, Get,
        "string": "Returns a part of a string.", strings::getrange;
    "getset" 3 SET | FAST, ONE, Update,
        "string": "Returns the value of a key and sets another.", strings::getset;
    "incr" 2 SET | FAST, ONE, Update,
        "string": "Increments the number of a key by one.", numbers::incr;
    "incrby" 3 SET | FAST, ONE, Update,
        "string": "Increments the number of a key.", numbers::incrby;
    "incrbyfloat" 3 SET | FAST, ONE, Update,
        "string": "Adds a number with a fraction to that of a key.", numbers::incrbyfloat;
    "lcs" -3 READ, TWO, Get,
        "string": "Finds the longest common subsequence of two values.", lcs::lcs;
    "mget" -2 READ | FAST, ALL, Get,
        "string": "Returns the values of several keys.", strings::mget;
    "mset" -3 SET | ALONE, PAIRS, Put,
        "string": "Sets the values of several keys.", strings::mset;
    "msetnx" -3 SET | ALONE, PAIRS, Update,
        "string": "Sets the values of several keys if none of them exists.", strings::msetnx;
    "psetex" 4 SET, ONE, Put,
        "string": "Sets a value and its end in milliseconds.", strings::psetex;
    "set" -3 SET, ONE, Put,
        "string": "Sets the value of a key.", strings::set;
    "setbit" 4 SET, ONE, Update,
        "bitmap": "Sets one bit of a string.", bits::setbit;
    "setex" 4 SET, ONE, Put,
        "string": "Sets a value and its end in seconds.", strings::setex;
    "setnx" 3 SET | FAST, ONE, Update,
        "string": "Sets a value if the key does not exist.", strings::setnx;
    "setrange" 4 SET, ONE, Update,
        "string": "Overwrites a part of a string.", strings::setrange;
    "strlen" 2 READ | FAST, ONE, Get,
        "string": "Returns the length of a value.", strings::strlen;
    "substr" 4 READ, ONE, Get,
        "string": "Returns a part of a string: the old name of GETRANGE.", strings::getrange;

    "copy" -3 SET | ALONE, TWO, Put,
        "generic": "Copies a value to another key.", keys::copy;
    "del" -2 WRITE, ALL, Delete,
        "generic": "Deletes keys.", keys::del;
    "dump" 2 READ, ONE, Get,
        "generic": "Returns a value as Redis' files have it.", dump::dump;
    "exists" -2 READ | FAST, ALL, Get,
        "generic": "Counts which keys exist.", keys::exists;
    "expire" -3 WRITE | FAST, ONE, Touch,
        "generic": "Sets when a key ends, in seconds from now.", expiry::expire;
    "expireat" -3 WRITE | FAST, ONE, Touch,
        "generic": "Sets when a key ends, in seconds of Unix time.", expiry::expireat;
    "expiretime" 2 READ | FAST, ONE, Get,
        "generic": "Returns when a key ends, in seconds of Unix time.", expiry::expiretime;
    "keys" 2 READ, NO_KEYS, Scan,
        "generic": "Returns all keys that match a pattern.", scan::keys;
    "move" 3 WRITE | FAST | ALONE, ONE, Put,
        "generic": "Moves a key to another database.", keys::move_to;
    "object" -2 READ | CONTAINER, (2, 2, 1), Get,
        "generic": "Says how a value is kept.", keys::object;
    "persist" 2 WRITE | FAST, ONE, Touch,
        "generic": "Lets a key never end.", expiry::persist;
    "pexpire" -3 WRITE | FAST, ONE, Touch,
        "generic": "Sets when a key ends, in milliseconds from now.", expiry::pexpire;
    "pexpireat" -3 WRITE | FAST, ONE, Touch,
        "generic": "Sets when a key ends, in milliseconds of Unix time.", expiry::pexpireat;
    "pexpiretime" 2 READ | FAST, ONE, Get,
        "generic": "Returns when a key ends, in milliseconds of Unix time.", expiry::pexpiretime;
    "pttl" 2 READ | FAST, ONE, Get,
        "generic": "Returns how long a key will be there, in milliseconds.", expiry::pttl;
    "randomkey" 1 READ, NO_KEYS, Scan,
        "generic": "Returns some key.", scan::randomkey;
    "remora.get" -4 READ, ONE, Get,
        "string": "Returns a key's value, or columns, if a predicate holds for it.", select::get;
    "remora.scan" -5 READ, NO_KEYS, Scan,
        "generic": "Walks over rows of a tablespace that a predicate selects.", select::scan;
    "rename" 3 WRITE | ALONE, TWO, Put,
        "generic": "Renames a key.", keys::rename;
    "renamenx" 3 WRITE | FAST | ALONE, TWO, Put,
        "generic": "Renames a key if the new name is free.", keys::renamenx;
    "restore" -4 SET, ONE, Put,
        "generic": "Sets a key to what DUMP has answered.", dump::restore;
    "scan" -2 READ, NO_KEYS, Scan,
        "generic": "Walks over keys, step by step.", scan::scan;
    "touch" -2 READ | FAST, ALL, Get,
        "generic": "Counts which keys exist, as a use of them.", keys::touch;
    "ttl" 2 READ | FAST, ONE, Get,
        "generic": "Returns how long a key will be there, in seconds.", expiry::ttl;
    "type" 2 READ | FAST, ONE, Get,
        "generic": "Returns the type of a value.", keys::kind;
    "unlink" -2 WRITE | FAST, ALL, Delete,
        "generic": "Deletes keys.", keys::del;
    "wait" 3 0, NO_KEYS, Other,
        "generic": "Waits for backups that hold what was changed: how many?", server::wait;

    "discard" 1 FAST | AT_ONCE, NO_KEYS, Other,
        "transactions": "Forgets a transaction.", transaction::discard;
    "exec" 1 AT_ONCE, NO_KEYS, Other,
        "transactions": "Carries out a transaction.", transaction::exec_without;
    "multi" 1 FAST | AT_ONCE, NO_KEYS, Other,
        "transactions": "Begins a transaction.", transaction::multi;
    "unwatch" 1 FAST, NO_KEYS, Other,
        "transactions": "Forgets which keys are watched.", transaction::unwatch;
    "watch" -2 FAST | AT_ONCE, ALL, Other,
        "transactions": "Makes a transaction depend on keys.", transaction::watch;

    "auth" -2 FAST | STRANGER, NO_KEYS, Other,
        "connection": "Gives the password.", connection::auth;
    "client" -2 CONTAINER, NO_KEYS, Other,
        "connection": "Names, lists, pauses and ends connections.", connection::client;
    "echo" 2 FAST, NO_KEYS, Other,
        "connection": "Returns its argument.", connection::echo;
    "hello" -1 FAST | STRANGER, NO_KEYS, Other,
        "connection": "Chooses the version of the protocol.", connection::hello;
    "ping" -1 FAST, NO_KEYS, Other,
        "connection": "Says that the server is there.", connection::ping;
    "quit" -1 FAST | STRANGER | AT_ONCE, NO_KEYS, Other,
        "connection": "Ends the connection.", connection::quit;
    "reset" 1 FAST | STRANGER | AT_ONCE, NO_KEYS, Other,
        "connection": "Makes the connection as it was when it was new.", connection::reset;
    "select" 2 FAST, NO_KEYS, Other,
        "connection": "Chooses the database.", connection::select;

    "bgsave" -1 ADMIN, NO_KEYS, Other,
        "server": "Begins to write the store to the disk.", server::bgsave;
    "asking" 1 FAST, NO_KEYS, Other,
        "cluster": "Says that another node has sent the next command here.", connection::asking;
    "cluster" -2 CONTAINER | NO_MULTI, NO_KEYS, Other,
        "cluster": "Says which nodes the keys are on.", cluster::cluster;
    "command" -1 CONTAINER, NO_KEYS, Other,
        "server": "Describes commands.", server::command;
    "config" -2 ADMIN | CONTAINER, NO_KEYS, Other,
        "server": "Reads and sets what can be set.", config::config;
    "dbsize" 1 READ | FAST, NO_KEYS, Other,
        "server": "Returns how many keys the database has.", keys::dbsize;
    "debug" -2 ADMIN | READ | CONTAINER, NO_KEYS, Scan,
        "server": "DIGEST returns a digest of all keys and values.", scan::debug;
    "flushall" -1 WRITE | ALONE, NO_KEYS, Delete,
        "server": "Deletes all keys of all databases.", keys::flushall;
    "flushdb" -1 WRITE | ALONE, NO_KEYS, Delete,
        "server": "Deletes all keys of the database.", keys::flushdb;
    "function" -2 CONTAINER, NO_KEYS, Other,
        "scripting": "FLUSH is accepted: there are no functions.", server::function;
    "info" -1 0, NO_KEYS, Other,
        "server": "Says how the server is.", info::info;
    "lastsave" 1 FAST, NO_KEYS, Other,
        "server": "Returns when the store was last written to the disk.", server::lastsave;
    "latency" -2 ADMIN | CONTAINER, NO_KEYS, Other,
        "server": "Says how long operations take.", latency::latency;
    "memory" -2 READ | CONTAINER, (2, 2, 1), Other,
        "server": "Says what takes how much memory.", server::memory;
    "readonly" 1 FAST, NO_KEYS, Other,
        "cluster": "Allows reads of a replica's copy, which may be old.", connection::readonly;
    "readwrite" 1 FAST, NO_KEYS, Other,
        "cluster": "Takes READONLY back.", connection::readwrite;
    "save" 1 ADMIN | NO_MULTI, NO_KEYS, Other,
        "server": "Writes the store to the disk.", server::save;
    "shutdown" -1 ADMIN | NO_MULTI, NO_KEYS, Other,
        "server": "Ends the server.", server::shutdown;
    "slowlog" -2 ADMIN | CONTAINER, NO_KEYS, Other,
        "server": "Lists what took long.", server::slowlog;
    "time" 1 FAST, NO_KEYS, Other,
        "server": "Returns the time.", server::time;
}

/// Places in the index, a power of two well above the number of commands.
const PLACES: usize = 512;

/// From a name's hash to its row, by open addressing; 0 is free, else the row's number plus one.
static INDEX: LazyLock<[u8; PLACES]> = LazyLock::new(|| {
    let mut index = [0; PLACES];
    for (row, command) in TABLE.iter().enumerate() {
        let mut place = hash(command.name.as_bytes());
        while index[place] != 0 {
            place = (place + 1) % PLACES;
        }
        index[place] = row as u8 + 1;
    }
    index
});

fn hash(name: &[u8]) -> usize {
    let mix = |sum: u32, byte: &u8| {
        (sum ^ u32::from(byte.to_ascii_lowercase())).wrapping_mul(0x0100_0193)
    };
    let sum = name.iter().fold(0x811c_9dc5, mix);
    (sum ^ (sum >> 15)) as usize % PLACES
}

/// The command of this name, in letters of any size, and its row.
pub(crate) fn find(name: &[u8]) -> Option<(usize, &'static Command)> {
    let mut place = hash(name);
    while INDEX[place] != 0 {
        let row = usize::from(INDEX[place] - 1);
        let command = &TABLE[row];
        if name.eq_ignore_ascii_case(command.name.as_bytes()) {
            return Some((row, command));
        }
        place = (place + 1) % PLACES;
    }
    None
}

/// As [`find`]. Clients mostly repeat commands, so `last`, the row that was found last, is looked
/// at first.
#[inline]
pub(crate) fn find_again(last: usize, name: &[u8]) -> Option<(usize, &'static Command)> {
    match TABLE.get(last) {
        Some(row) if name.eq_ignore_ascii_case(row.name.as_bytes()) => Some((last, row)),
        _ => find(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_once() {
        assert!(TABLE.len() < 255 && TABLE.len() * 2 < PLACES);
        for (row, command) in TABLE.iter().enumerate() {
            let upper = command.name.to_uppercase();
            for last in [0, row, TABLE.len() - 1, usize::MAX] {
                let found = find_again(last, upper.as_bytes());
                assert_eq!(found.map(|found| found.0), Some(row), "{upper}");
            }
            assert_ne!(command.arity, 0);
        }
        assert!(find(b"sadd").is_none() && find(b"").is_none() && find(&[0xff; 70_000]).is_none());
    }
}
