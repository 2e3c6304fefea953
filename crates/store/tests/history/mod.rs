//! Histories of clients, and the files in which porcupine gets them (docs/testing.md): a line of
//! JSON an operation.

pub(crate) mod card;
pub(crate) mod course;
pub(crate) mod redis;
pub(crate) mod value;

use std::fs::{File, create_dir_all};
use std::io::{BufWriter, Write};
use std::path::Path;

/// Names the folder for the files of histories; without it none are written.
const FOLDER: &str = "REMORA_HISTORIES";

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Op {
    Get,
    Set(u32),
    Delete,
    /// Sets the second if the value is the first.
    Swap(u32, u32),
    /// Adds to a counter, which begins as 0.
    Add(u32),
    /// Appends so many bytes, all alike, to a value that is nothing but such.
    Append(u32),
    /// Deletes all keys.
    Flush,
    /// Gives a key an end that nobody waits for, or takes its end away.
    End(bool),
    /// The same, which reads the value.
    GetEnd(bool),
    /// Whether a key has an end: 1, or else 0.
    HasEnd,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Ret {
    Value(Option<u32>),
    Done,
    /// Whether there was a value to delete, or the one to swap, or a key or an end to change.
    Did(bool),
    /// What a counter is then.
    Sum(u32),
}

/// An operation of a history: when it began, and how and when it ended, as far as anybody knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) client: usize,
    pub(crate) key: u64,
    pub(crate) op: Op,
    pub(crate) began: u64,
    pub(crate) ended: Option<(u64, Ret)>,
}

impl Event {
    /// The operation as a line of JSON, about a key of this name.
    fn line(&self, key: &str) -> String {
        let Event { client, op, began, ended, .. } = self;
        let op = match op {
            Op::Get => r#""get""#.to_owned(),
            Op::Set(value) => format!(r#""set","value":{value}"#),
            Op::Delete => r#""delete""#.to_owned(),
            Op::Swap(old, new) => format!(r#""swap","old":{old},"value":{new}"#),
            Op::Add(more) => format!(r#""add","value":{more}"#),
            Op::Append(more) => format!(r#""append","value":{more}"#),
            Op::Flush => r#""flush""#.to_owned(),
            Op::End(true) => r#""expire""#.to_owned(),
            Op::End(false) => r#""persist""#.to_owned(),
            Op::GetEnd(ends) => format!(r#""getex","value":{}"#, u8::from(*ends)),
            Op::HasEnd => r#""expires""#.to_owned(),
        };
        let ended = ended.map_or(String::new(), |(at, ret)| {
            let answer = match ret {
                Ret::Value(Some(value)) | Ret::Sum(value) => format!(r#","found":{value}"#),
                Ret::Value(None) | Ret::Done => String::new(),
                Ret::Did(did) => format!(r#","did":{did}"#),
            };
            format!(r#","return":{at}{answer}"#)
        });
        format!(r#"{{"key":"{key}","client":{client},"op":{op},"invoke":{began}{ended}}}"#)
    }
}

/// A file of histories, if somebody wants one.
pub(crate) struct Record(Option<BufWriter<File>>);

impl Record {
    /// The file of the test with this name.
    pub(crate) fn create(test: &str) -> Record {
        Record(std::env::var_os(FOLDER).map(|folder| {
            create_dir_all(&folder).unwrap();
            let file = File::create(Path::new(&folder).join(format!("{test}.jsonl")));
            BufWriter::new(file.unwrap())
        }))
    }

    /// Adds an operation about the key of this name, which is nobody else's in the file.
    pub(crate) fn add(&mut self, key: &str, event: &Event) {
        if let Some(file) = &mut self.0 {
            writeln!(file, "{}", event.line(key)).unwrap();
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if let Some(file) = &mut self.0 {
            file.flush().unwrap();
        }
    }
}
