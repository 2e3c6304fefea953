//! A section of a world file: each value is asked for by its name, and what nobody has asked for is
//! a mistake. [`units`] reads numbers with units, and has the words for what they look like.

use core::fmt::Display;
use core::ops::{Range, RangeInclusive};
use core::str::FromStr;

use remora_nic::Tuning;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::hosts::hosts;
use crate::flows::{Parameter, Unit};
use crate::format::FormatError;
use crate::net::time::NS;
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
    /// The file that has it, as the world names it; `None`: the world itself.
    pub file: Option<String>,
}

impl Mistake {
    pub(super) fn new(at: Range<usize>, message: impl Display, help: impl Into<String>) -> Mistake {
        Mistake { at, message: message.to_string(), help: help.into(), file: None }
    }

    /// The same, as a mistake in a file that the world names.
    pub(super) fn of_file(self, name: &str) -> Mistake {
        Mistake { file: Some(name.into()), ..self }
    }
}

/// A mistake in a file that the world names.
pub(super) fn in_file(name: &str, at: Range<usize>, error: FormatError) -> Mistake {
    Mistake::new(at, format!("{name}, {error}"), "correct that line of the file").of_file(name)
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

    /// A name, or a sentence; empty if it is not there.
    pub(super) fn title(&mut self, key: &'static str) -> Result<String, Mistake> {
        const MOST: usize = 1024;
        let what = format!("a text of at most {MOST} bytes");
        let read = |word: &str| (word.len() <= MOST).then(|| word.to_owned());
        Ok(self.read(key, &what, read)?.map_or_else(String::new, |found| found.0))
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

    /// A value of a transport's parameter, in its unit and its bounds.
    pub(super) fn parameter(&mut self, of: &'static Parameter) -> Result<Option<u64>, Mistake> {
        let (least, most) = (of.unit.shown(*of.bounds.start()), of.unit.shown(*of.bounds.end()));
        let kind = match of.unit {
            Unit::Number => "a number",
            Unit::PowerOfTwo => "a power of two",
            Unit::Part => "a part of the whole",
            Unit::Time => "a time",
            Unit::Bytes => "a number of bytes",
            Unit::Rate => "a rate",
        };
        let read = |word: &str| {
            let value = match of.unit {
                Unit::Number => word.parse().ok()?,
                Unit::PowerOfTwo => word.parse().ok().filter(|n: &u64| n.is_power_of_two())?,
                Unit::Part => units::part(word, Tuning::ONE)?,
                Unit::Time => units::time(word)?.div_ceil(NS),
                Unit::Bytes => units::bytes(word)?,
                Unit::Rate => units::rate(word)?.bits()?,
            };
            of.bounds.contains(&value).then_some(value)
        };
        let what = format!("{kind} from {least} to {most}");
        Ok(self.read(of.name, &what, read)?.map(|found| found.0))
    }

    /// How many of something there are. The caller says what more than `most` would take.
    pub(super) fn count(&mut self, key: &'static str, most: u64) -> Result<Option<u32>, Mistake> {
        let what = format!("a number from 1 to {most}");
        let read = |word: &str| word.parse().ok().filter(|count| *count > 0);
        Ok(self.read(key, &what, read)?.map(|found| found.0))
    }

    /// Hosts, as [`hosts`] reads them.
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
        let Some((word, at)) = self.word(key)? else { return Ok(None) };
        let wrong = |why: String| {
            let short: String = word.chars().take(40).collect();
            let last = of.saturating_sub(1);
            let help = format!(
                "it should be hosts from 0 to {last}, as in \"0-{last}\", \"0,2,4\", \
                 \"0-{last}/2\" or \"!0\""
            );
            Mistake::new(at.clone(), format!("`{key}` is \"{short}\": {why}"), help)
        };
        hosts(&word, of).map(Some).map_err(wrong)
    }

    /// The two ends of a cable: `["switch 0", "host 3"]`.
    pub(super) fn cable(&mut self, key: &'static str) -> Result<Option<Found<[Node; 2]>>, Mistake> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let at = value.span();
        let ends: Option<Vec<Node>> = match value.get_ref() {
            DeValue::Array(ends) => {
                ends.iter().map(|end| Node::named(end.get_ref().as_str()?)).collect()
            }
            _ => None,
        };
        match *ends.unwrap_or_default() {
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
        let found = self.section_if(key)?;
        Ok(found.unwrap_or_else(|| Section::new(key, self.at.clone(), DeTable::new())))
    }

    /// The section of this name, if it is there.
    pub(super) fn section_if(&mut self, key: &'static str) -> Result<Option<Section<'a>>, Mistake> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let at = value.span();
        let name = match self.name.as_str() {
            "" => key.to_owned(),
            outer => format!("{outer}.{key}"),
        };
        match value.into_inner() {
            DeValue::Table(table) => Ok(Some(Section::new(&name, at, table))),
            _ => Err(Mistake::new(at, format!("`{key}` is no section"), format!("write [{name}]"))),
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
