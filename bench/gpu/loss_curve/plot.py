"""Loss curves as SVG, with nothing but the standard library."""
import math

WIDTH, HEIGHT = 760, 250  # of one panel
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 34, 40
COLORS = {"braid": "#d1495b", "torch": "#30638e", "torch_other": "#8a9a5b"}
NAMES = {"braid": "braid", "torch": "PyTorch", "torch_other": "PyTorch, other attention kernel"}


def nice_step(span, count):
    """1, 2 or 5 times a power of ten, so that about `count` of them make the span."""
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)


class Panel:
    """One coordinate system; pixel rows count downwards from `offset`."""

    def __init__(self, offset, x_range, y_range, title):
        self.offset, self.title = offset, title
        self.x_range, self.y_range = x_range, y_range
        self.parts = []

    def x(self, value):
        low, high = self.x_range
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, value):
        low, high = self.y_range
        return self.offset + TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def text(self, x, y, text, anchor="middle", color="#333"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{text}</text>')

    def axes(self):
        self.text(LEFT, self.offset + 20, self.title, "start")
        for low, high, is_x in ((*self.x_range, True), (*self.y_range, False)):
            step = nice_step(high - low, 8 if is_x else 5)
            tick = -(-low // step) * step
            while tick <= high + 1e-9 * step:
                x1, x2 = (self.x(tick),) * 2 if is_x else (LEFT, WIDTH - RIGHT)
                y1, y2 = (self.offset + TOP, self.offset + HEIGHT - BOTTOM) if is_x else (self.y(tick),) * 2
                label = f"{round(tick / step) * step:.4g}"
                self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>')
                if is_x:
                    self.text(x1, self.offset + HEIGHT - BOTTOM + 16, label)
                else:
                    self.text(LEFT - 6, y1 + 4, label, "end")
                tick += step

    def line(self, values, first_x, color, wide=1.5):
        """A point per step, thinned out to what a screen shows."""
        stride = max(1, len(values) // 350)
        points = " ".join(f"{self.x(first_x + i):.1f},{self.y(values[i]):.1f}" for i in range(0, len(values), stride))
        self.parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{wide}"/>')

    def dots(self, values, color):
        for step, value in values.items():
            self.parts.append(f'<circle cx="{self.x(step):.1f}" cy="{self.y(value):.1f}" r="3" fill="none" stroke="{color}"/>')


def padded(values):
    low, high = min(values), max(values)
    margin = 0.05 * (high - low) or 1e-6
    return low - margin, high + margin


def picture(panels):
    """The SVG file of panels below each other."""
    body, height = "\n".join(part for panel in panels for part in panel.parts), HEIGHT * len(panels)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
            f'font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n')


def two_panels(smooth, window, valid):
    """Losses above, differences to PyTorch below; `smooth`: moving means by side, `valid`: held-out losses by side and step."""
    first_x = (window + 1) / 2
    x_range = (0, len(smooth["braid"]) + window)
    every = [value for values in smooth.values() for value in values] + [v for side in valid.values() for v in side.values()]
    losses = Panel(0, x_range, padded(every), f"loss, nats per token: means of {window} steps; circles: held-out text")
    losses.axes()
    wide = {"torch": 4.5, "torch_other": 3.0, "braid": 1.2}  # the curves cover each other
    for side in filter(smooth.get, ("torch", "torch_other", "braid")):
        losses.line(smooth[side], first_x, COLORS[side], wide[side])
        losses.dots(valid[side], COLORS[side])
    apart = {side: [a - b for a, b in zip(smooth[side], smooth["torch"])] for side in ("torch_other", "braid") if side in smooth}
    below = Panel(HEIGHT, x_range, padded([0.0, *(value for values in apart.values() for value in values)]), "difference to PyTorch, the same means")
    below.axes()
    for side, values in apart.items():
        below.line(values, first_x, COLORS[side])
    for i, side in enumerate(filter(smooth.get, ("braid", "torch", "torch_other"))):
        losses.text(WIDTH - RIGHT - 4, TOP + 18 + 16 * i, NAMES[side], "end", COLORS[side])
    below.text(WIDTH / 2, 2 * HEIGHT - 6, "step")
    return picture([losses, below])
