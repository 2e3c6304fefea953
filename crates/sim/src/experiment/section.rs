//! A section of a world file: each value is asked for by its name, and what nobody has asked for is
//! a mistake. [`units`] reads numbers with units, and has the words for what they look like.

use core::fmt::Display;
use core::ops::{Range, RangeInclusive};
use core::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::format::FormatError;
use crate::net::{LineRate, Node, Ps};
use crate::units;

/// Reads a file that a world names; the error says in words why it cannot.
pub type Files<'a> = &'a dyn Fn(&str) -> Result<String, String>;

/// A mistake in a world file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mistake {
    /// Its place, in bytes of the text.
    pub at: Range<usize>,
    /// What is wrong.
    pub message: String,
    /// What the writer of the file can do about it.
    pub help: String,
}

impl Mistake {
    pub(super) fn new(at: Range<usize>, message: impl Display, help: impl Into<String>) -> Mistake {
        Mistake { at, message: message.to_string(), help: help.into() }
    }
}

/// A mistake in a file that the world names.
pub(super) fn in_file(name: &str, at: Range<usize>, error: FormatError) -> Mistake {
    Mistake::new(at, format!("{name}, {error}"), "correct that line of the file")
}

/// A value that was found, and its place.
pub(super) type Found<T> = (T, Range<usize>);

/// A section.
pub(super) struct Section<'a> {
    name: String,
    /// Its place, for what is missing.
    pub(super) at: Range<usize>,
    entries: Vec<(String, Range<usize>, Spanned<DeValue<'a>>)>,
    asked: Vec<&'static str>,
}

impl<'a> Section<'a> {
    pub(super) fn new(name: &str, at: Range<usize>, table: DeTable<'a>) -> Section<'a> {
        let entries = table
            .into_iter()
            .map(|(key, value)| (key.get_ref().to_string(), key.span(), value))
            .collect();
        Section { name: name.into(), at, entries, asked: Vec::new() }
    }

    fn take(&mut self, key: &'static str) -> Option<Spanned<DeValue<'a>>> {
        self.asked.push(key);
        let place = self.entries.iter().position(|(name, ..)| name == key)?;
        Some(self.entries.swap_remove(place).2)
    }

    /// Where the value of this key is, if it is there.
    pub(super) fn place(&self, key: &str) -> Option<Range<usize>> {
        self.entries.iter().find(|(name, ..)| name == key).map(|(.., value)| value.span())
    }

    /// Is this key there?
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|(name, ..)| name == key)
    }

    /// A value as a word: strings and numbers are.
    fn word(&mut self, key: &'static str) -> Result<Option<Found<String>>, Mistake> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let at = value.span();
        let word = match value.get_ref() {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
            DeValue::Float(number) => number.as_str().to_owned(),
            DeValue::Boolean(flag) => flag.to_string(),
            other => {
                let what = format!("`{key}` is {}", article(other.type_str()));
                return Err(Mistake::new(at, what, "give one word, in quotes if it has letters"));
            }
        };
        Ok(Some((word, at)))
    }

    /// A value that `read` understands; `what` says what it should be.
    fn read<T>(
        &mut self,
        key: &'static str,
        what: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<Found<T>>, Mistake> {
        let Some((word, at)) = self.word(key)? else { return Ok(None) };
        match read(&word) {
            Some(value) => Ok(Some((value, at))),
            None => {
                let short: String = word.chars().take(40).collect();
                let message = format!("`{key}` is \"{short}\"");
                Err(Mistake::new(at, message, format!("it should be {what}")))
            }
        }
    }

    pub(super) fn text(&mut self, key: &'static str) -> Result<Option<Found<String>>, Mistake> {
        self.read(key, "a word", |word| Some(word.to_owned()))
    }

    pub(super) fn rate(&mut self, key: &'static str) -> Result<Option<LineRate>, Mistake> {
        Ok(self.read(key, units::RATE, units::rate)?.map(|found| found.0))
    }

    pub(super) fn delay(&mut self, key: &'static str) -> Result<Option<Ps>, Mistake> {
        Ok(self.read(key, units::DELAY, units::delay)?.map(|found| found.0))
    }

    pub(super) fn time(&mut self, key: &'static str) -> Result<Option<Found<Ps>>, Mistake> {
        self.read(key, units::TIME, units::time)
    }

    pub(super) fn bytes(&mut self, key: &'static str) -> Result<Option<Found<u64>>, Mistake> {
        self.read(key, units::BYTES, units::bytes)
    }

    pub(super) fn flag(&mut self, key: &'static str) -> Result<bool, Mistake> {
        Ok(self.read(key, "true or false", |word| word.parse().ok())?.is_some_and(|found| found.0))
    }

    /// A number in these bounds.
    pub(super) fn number<T: FromStr + PartialOrd + Display>(
        &mut self,
        key: &'static str,
        bounds: RangeInclusive<T>,
    ) -> Result<Option<T>, Mistake> {
        let what = format!("a number from {} to {}", bounds.start(), bounds.end());
        let read = |word: &str| word.parse().ok().filter(|value| bounds.contains(value));
        Ok(self.read(key, &what, read)?.map(|found| found.0))
    }

    /// Hosts: `"0..15"`, both included, or one number.
    pub(super) fn hosts(&mut self, key: &'static str, of: u32) -> Result<Vec<u32>, Mistake> {
        let found = self.hosts_if(key, of)?;
        self.need(key, found)
    }

    /// As [`Section::hosts`], if they are there.
    pub(super) fn hosts_if(
        &mut self,
        key: &'static str,
        of: u32,
    ) -> Result<Option<Vec<u32>>, Mistake> {
        let what = format!("hosts from 0 to {}, as in \"0..{0}\"", of.saturating_sub(1));
        let read = |word: &str| {
            let (first, last) = word.split_once("..").unwrap_or((word, word));
            let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            (first <= last && last < of).then(|| (first..=last).collect())
        };
        Ok(self.read(key, &what, read)?.map(|found| found.0))
    }

    /// The two ends of a cable: `["switch 0", "host 3"]`.
    pub(super) fn cable(&mut self, key: &'static str) -> Result<Option<Found<[Node; 2]>>, Mistake> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let at = value.span();
        let ends: Vec<Node> = match value.get_ref() {
            DeValue::Array(ends) => {
                ends.iter().filter_map(|end| Node::named(end.get_ref().as_str()?)).collect()
            }
            _ => Vec::new(),
        };
        match *ends {
            [a, b] => Ok(Some(([a, b], at))),
            _ => Err(Mistake::new(
                at,
                format!("`{key}` does not name the two ends of a cable"),
                "as in [\"switch 0\", \"host 3\"]",
            )),
        }
    }

    pub(super) fn node(&mut self, key: &'static str) -> Result<Option<Found<Node>>, Mistake> {
        self.read(key, "a host or switch, as in \"switch 3\"", Node::named)
    }

    /// Sections of this name: `[[name]]`.
    pub(super) fn sections(&mut self, key: &'static str) -> Result<Vec<Section<'a>>, Mistake> {
        let Some(value) = self.take(key) else { return Ok(Vec::new()) };
        let at = value.span();
        let wrong = |at| {
            Mistake::new(at, format!("`{key}` is no list of sections"), format!("write [[{key}]]"))
        };
        let DeValue::Array(list) = value.into_inner() else { return Err(wrong(at)) };
        let section = |entry: Spanned<DeValue<'a>>| {
            let at = entry.span();
            match entry.into_inner() {
                DeValue::Table(table) => Ok(Section::new(key, at, table)),
                _ => Err(wrong(at)),
            }
        };
        list.into_iter().map(section).collect()
    }

    /// The section of this name: `[name]`; an empty one if it is not there.
    pub(super) fn section(&mut self, key: &'static str) -> Result<Section<'a>, Mistake> {
        let Some(value) = self.take(key) else {
            return Ok(Section::new(key, self.at.clone(), DeTable::new()));
        };
        let at = value.span();
        match value.into_inner() {
            DeValue::Table(table) => Ok(Section::new(key, at, table)),
            _ => Err(Mistake::new(at, format!("`{key}` is no section"), format!("write [{key}]"))),
        }
    }

    /// What is there, or a mistake that says that it is missing.
    pub(super) fn need<T>(&self, key: &str, found: Option<T>) -> Result<T, Mistake> {
        found.ok_or_else(|| {
            let message = format!("[{}] has no `{key}`", self.name);
            match self.entries.iter().find(|(other, ..)| is_misspelt(other, key)) {
                Some((other, at, _)) => {
                    let message = format!("{message}, but `{other}`");
                    Mistake::new(at.clone(), message, format!("write `{key}`, if that is meant"))
                }
                None => Mistake::new(self.at.clone(), message, format!("add a line `{key} = …`")),
            }
        })
    }

    /// A mistake about the whole section.
    pub(super) fn mistake(&self, message: impl Display, help: impl Into<String>) -> Mistake {
        Mistake::new(self.at.clone(), message, help)
    }

    /// Nothing is left that nobody has asked for.
    pub(super) fn end(self) -> Result<(), Mistake> {
        let Some((key, at, _)) = self.entries.into_iter().min_by_key(|(_, at, _)| at.start) else {
            return Ok(());
        };
        let known: Vec<String> = self.asked.iter().map(|key| format!("`{key}`")).collect();
        let place =
            if self.name.is_empty() { "a world".into() } else { format!("[{}]", self.name) };
        let message = format!("{place} has no `{key}`, as the rest of it stands");
        Err(Mistake::new(at, message, format!("it may have {}", known.join(", "))))
    }
}

/// Is this almost the right word? One letter in three may be missing, too many or another.
fn is_misspelt(word: &str, right: &str) -> bool {
    let (word, right): (Vec<char>, Vec<char>) = (word.chars().collect(), right.chars().collect());
    if word.len() > 2 * right.len() {
        return false;
    }
    // How many letters tell the beginnings of both words apart, by the length of the right one's.
    let mut apart: Vec<usize> = (0..=right.len()).collect();
    for (i, letter) in word.iter().enumerate() {
        let mut diagonal = apart[0];
        apart[0] = i + 1;
        for (j, wanted) in right.iter().enumerate() {
            let change = diagonal + usize::from(letter != wanted);
            diagonal = apart[j + 1];
            apart[j + 1] = change.min(apart[j] + 1).min(diagonal + 1);
        }
    }
    apart[right.len()] <= right.len() / 3
}

/// The word with its article.
fn article(word: &str) -> String {
    let is_vowel = word.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {word}", if is_vowel { "an" } else { "a" })
}
