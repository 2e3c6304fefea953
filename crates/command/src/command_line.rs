//! Reads the command line, and says what is wrong with it in words for a person.

use std::error::Error;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};
use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::failure;
use crate::node::address::AddressError;

/// Reads the command line of the program of this name.
///
/// # Errors
/// The status with which to end: help was asked for, or something is wrong. It was told.
pub fn parse<C: Parser>(program: &str) -> Result<C, ExitCode> {
    C::try_parse().map_err(|error| {
        // The line is right, and the system's look-up of the name has failed.
        let named = error.source().and_then(|why| why.downcast_ref::<AddressError>());
        if let Some(unknown @ AddressError::Name { .. }) = named {
            return failure::report(program, &unknown.clone().into());
        }
        let error = in_words(error);
        // (Where nobody reads it, the status says it.)
        error.print().ok();
        u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
    })
}

/// The same error, in words for a person where it says what a parser of numbers says.
fn in_words(error: clap::Error) -> clap::Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text),
        _ => None,
    };
    let argument = text(ContextKind::InvalidArg).zip(text(ContextKind::InvalidValue));
    let Some((argument, value)) = argument else { return error };
    let Some(words) = error.source().and_then(of_number) else { return error };
    let message = format!(
        "invalid value '{value}' for '{argument}': {words}\n\nFor more information, try '--help'.\n"
    );
    clap::Error::raw(ErrorKind::ValueValidation, message)
}

/// Why a text is not the number that is meant, where a parser of numbers says so.
fn of_number(why: &(dyn Error + 'static)) -> Option<String> {
    if let Some(error) = why.downcast_ref::<ParseIntError>() {
        let words = match error.kind() {
            IntErrorKind::PosOverflow => "it is too large a number",
            IntErrorKind::NegOverflow => "it is too small a number",
            IntErrorKind::Zero => "the least is 1",
            _ => "write a whole number, as in 42",
        };
        return Some(words.into());
    }
    if why.is::<ParseFloatError>() {
        return Some("write a number, as in 42 or 0.5".into());
    }
    // What clap says of a number out of range: `0 is not in 1..=9`.
    let said = why.to_string();
    let (least, most) = said.split_once(" is not in ")?.1.split_once("..")?;
    let is_number = |text: &str| text.parse::<i128>().is_ok();
    match most.strip_prefix('=') {
        Some(most) if is_number(least) && is_number(most) => {
            Some(format!("write a whole number from {least} to {most}"))
        }
        None if is_number(least) && is_number(most) => Some(format!("the least is {least}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use clap::{Parser, value_parser};

    use super::*;

    #[derive(Parser, Debug)]
    struct Line {
        seed: Option<u64>,
        #[arg(long, value_parser = value_parser!(u16).range(3..=9))]
        cells: Option<u16>,
        #[arg(long, value_parser = value_parser!(u64).range(1..))]
        count: Option<u64>,
        #[arg(long)]
        threads: Option<NonZeroUsize>,
        #[arg(long)]
        seconds: Option<f64>,
    }

    #[test]
    fn wrong_numbers_are_told_in_words() {
        for (word, wrong) in [
            ("abc", "'[SEED]': write a whole number, as in 42"),
            ("99999999999999999999", "it is too large a number"),
            ("--cells=2", "write a whole number from 3 to 9"),
            ("--cells=x", "write a whole number, as in 42"),
            ("--count=0", "'--count <COUNT>': the least is 1"),
            ("--threads=0", "the least is 1"),
            ("--seconds=soon", "write a number, as in 42 or 0.5"),
        ] {
            let error = in_words(Line::try_parse_from(["x", word]).unwrap_err());
            let said = error.to_string();
            assert!(said.starts_with("error: invalid value"), "{said}");
            assert!(said.contains(wrong) && said.contains("--help"), "{word}: {said}");
            assert_eq!(error.exit_code(), 2);
        }
        let other = in_words(Line::try_parse_from(["x", "--no-such"]).unwrap_err());
        assert!(other.to_string().contains("unexpected argument"));
    }
}
