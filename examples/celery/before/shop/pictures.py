from celery import chord

from shop.app import app

SIZES = (64, 256, 1024)


@app.task(bind=True)
def render(self, product, size):
    for done in range(4):
        self.update_state(state="PROGRESS", meta={"done": done, "of": 4})
    return f"{product}-{size}.webp"


@app.task
def publish(pictures, product):
    return f"album of {product}: {', '.join(pictures)}"


def make_album(product):
    return chord((render.s(product, size) for size in SIZES), publish.s(product))()
