//! What is wrong in a text, and how it is shown to a person.
//!
//! The words are where a mistake is found: in `token`, `parse` and `lower`.

use core::ops::Range;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

/// One mistake in a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// The mistake's place, in bytes of the text.
    pub at: Range<usize>,
    /// What is wrong.
    pub message: String,
    /// What the writer of the text can do about it.
    pub help: String,
}

impl Diagnostic {
    pub(super) fn new(
        at: Range<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Diagnostic {
        Diagnostic { at, message: message.into(), help: help.into() }
    }

    /// Line and column of the mistake, both counted from 1; columns count characters.
    pub fn line_column(&self, text: &str) -> (usize, usize) {
        let before = text.get(..self.at.start).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let begin = before.rfind('\n').map_or(0, |newline| newline + 1);
        (line, before[begin..].chars().count() + 1)
    }

    /// The mistake as compilers show it: message, line, marked place, and help. `path` is the
    /// text's name.
    pub fn render(&self, path: &str, text: &str, colour: bool) -> String {
        let here = AnnotationKind::Primary.span(self.at.clone());
        let snippet = Snippet::source(text).path(path).annotation(here);
        let error = Level::ERROR.primary_title(&*self.message).element(snippet);
        let report = [error.element(Level::HELP.message(&*self.help))];
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        renderer.render(&report).clone()
    }
}
